// Read bandwidth of the memory as the team sees it: the figure that decode speed is held against.
#pragma once
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "isa.h"
#include "team.h"

namespace kg {

// Reads `bytes` at `memory` once with every thread; returns bytes per second. Use a buffer several
// times the last-level cache, and the best of a few calls.
inline double read_bandwidth(Team& team, const void* memory, size_t bytes) {
  const auto seconds = [] {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
  };
  const double start = seconds();
  team.run([&](const Worker& me) {
    const Range mine = me.share((int)(bytes / 4096));
    const char* at = static_cast<const char*>(memory) + (size_t)mine.begin * 4096;
    const char* const end = static_cast<const char*>(memory) + (size_t)mine.end * 4096;
    __m256i sum[8] = {};
    for (; at < end; at += sizeof sum) {
      KG_UNROLL for (int i = 0; i < 8; ++i) {
        sum[i] = _mm256_xor_si256(sum[i], _mm256_loadu_si256((const __m256i*)at + i));
      }
    }
    for (int i = 1; i < 8; ++i) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
    __asm__ volatile("" : : "x"(sum[0]));  // the reads count as used
  });
  return (double)bytes / (seconds() - start);
}

// Best of passes over 256 MiB of its own for about `seconds`; 10^9 bytes a second, 0 without memory.
inline double read_bandwidth(Team& team, double seconds) {
  constexpr size_t bytes = 256u << 20;
  void* const memory = aligned_alloc(4096, bytes);
  if (!memory) return 0.0;
  team.run([&](const Worker& me) {  // each thread touches its part first: there it will read it
    const Range mine = me.share((int)(bytes / 4096));
    for (int page = mine.begin; page < mine.end; ++page) memset(static_cast<char*>(memory) + (size_t)page * 4096, 1, 4096);
  });
  double best = 0.0, spent = 0.0;
  do {
    const double rate = read_bandwidth(team, memory, bytes);
    best = rate > best ? rate : best;
    spent += (double)bytes / rate;
  } while (spent < seconds);
  free(memory);
  return best * 1e-9;
}

}  // namespace kg
