// How fast this machine reads memory: what every other figure is a share of.
#pragma once
#include <time.h>

#include <cstdlib>
#include <utility>

#include "isa.h"
#include "team.h"

namespace kg {

// Best pass of streaming reads over 256 MiB by all threads of the team, in 10^9 bytes a second; 0 without memory.
inline double read_bandwidth(Team& team, double seconds) {
  constexpr size_t bytes = 256u << 20;
  float* const data = static_cast<float*>(aligned_alloc(4096, bytes));
  if (!data) return 0.0;
  const auto now = [] {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
  };
  const auto part = [&](const Worker& me) {
    const Range mine = me.share((int)(bytes / 4096));
    return std::pair<const char*, const char*>{(const char*)data + (size_t)mine.begin * 4096, (const char*)data + (size_t)mine.end * 4096};
  };
  team.run([&](const Worker& me) {
    const auto [begin, end] = part(me);
    for (char* p = const_cast<char*>(begin); p < end; p += 64) store(reinterpret_cast<float*>(p), splat(1.0f));
  });
  std::atomic<int> sink{0};
  double best = 0.0;
  const double stop = now() + (seconds > 0.01 ? seconds : 0.01);
  do {
    const double start = now();
    team.run([&](const Worker& me) {
      const auto [begin, end] = part(me);
      F16 a = zero(), b = zero(), c = zero(), d = zero();
      for (const char* p = begin; p < end; p += 256) {
        a = a + load(reinterpret_cast<const float*>(p));
        b = b + load(reinterpret_cast<const float*>(p + 64));
        c = c + load(reinterpret_cast<const float*>(p + 128));
        d = d + load(reinterpret_cast<const float*>(p + 192));
      }
      sink += (int)sum_lanes(a + b + (c + d));
    });
    const double rate = (double)bytes / (now() - start) * 1e-9;
    best = rate > best ? rate : best;
  } while (now() < stop);
  free(data);
  return best;
}

}  // namespace kg
