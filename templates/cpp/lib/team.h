// The worker team: one parallel region a step, a barrier between its kernels.
//
// Workers sleep in the kernel between steps (a futex, no spinning when idle). Inside a step a barrier
// spins for some microseconds, since kernels are short, and then sleeps too: on a machine with other
// work a spinning thread would sit on the very core that the late thread needs.
#pragma once
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>
#include <new>

namespace kg {

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

class Barrier {
 public:
  void reset(int count) { count_ = count; }

  // Returns once all `count` threads have arrived. Everything written before is visible after.
  void wait() {
    if (count_ == 1) {
      ticket_.store(0, std::memory_order_relaxed);
      return;
    }
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);
      ticket_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1);  // sequentially consistent: ordered against the look at sleepers_
      if (sleepers_.load() != 0) futex_wake_all(phase_);
      return;
    }
    for (int spin = 0; spin < SPINS; ++spin) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
      _mm_pause();
    }
    sleepers_.fetch_add(1);
    while (phase_.load() == phase) futex_wait(phase_, phase);
    sleepers_.fetch_sub(1);
  }

  // Next piece of dynamically shared work. Starts again from 0 after each wait(): one such loop
  // between two barriers.
  int next() { return ticket_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr int SPINS = 1500;  // 20 to 60 microseconds, by how long `pause` takes
  int count_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<uint32_t> sleepers_{0};
  alignas(64) std::atomic<int> ticket_{0};
};

struct Range {
  int begin, end;
};

// What a kernel knows of the thread it runs on.
struct Worker {
  int id, count;
  Barrier* barrier;

  void sync() const { barrier->wait(); }
  int next() const { return barrier->next(); }
  // The contiguous, balanced share of `items` that is this thread's.
  Range share(int items) const {
    const auto cut = [&](int i) { return (int)((long long)items * i / count); };
    return {cut(id), cut(id + 1)};
  }
};

class Team {
 public:
  static constexpr int MAX_THREADS = 256;

  ~Team() { stop(); }

  void resize(int threads) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wanted_ = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
  }

  // Runs body(worker) on every thread of the team, the caller being worker 0, and returns when all
  // are done. Callable from any thread; simultaneous callers take turns.
  template <class Body>
  void run(const Body& body) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (size_ != wanted_ || owner_ != getpid()) start();
    call_ = [](const void* b, const Worker& w) { (*static_cast<const Body*>(b))(w); };
    body_ = &body;
    if (size_ > 1) {
      epoch_.fetch_add(1);
      futex_wake_all(epoch_);
    }
    const unsigned rounding = _mm_getcsr();
    work(0);
    _mm_setcsr(rounding);
  }

 private:
  // The same rounding mode and denormal handling on every thread, the caller's included: results
  // must not depend on who computes them.
  static constexpr unsigned DEFAULT_MXCSR = 0x1f80;

  void work(int id) {
    _mm_setcsr(DEFAULT_MXCSR);
    call_(body_, Worker{id, size_, &barrier_});
    barrier_.wait();
  }

  struct Start {
    Team* team;
    int id;
    uint32_t epoch;
  };

  static void* main(void* argument) {
    const Start start = *static_cast<Start*>(argument);
    Team& team = *start.team;
    for (uint32_t seen = start.epoch;; ++seen) {
      while (team.epoch_.load() == seen) futex_wait(team.epoch_, seen);
      if (team.stopping_.load()) return nullptr;
      team.work(start.id);
    }
  }

  void start() {
    stop();
    owner_ = getpid();
    new (&barrier_) Barrier;
    sigset_t all, before;  // signals belong to the host program's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    size_ = 1;
    for (int id = 1; id < wanted_; ++id) {
      starts_[id] = {this, id, epoch_.load()};
      if (pthread_create(&threads_[id], nullptr, main, &starts_[id]) != 0) break;
      size_ = id + 1;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    wanted_ = size_;  // fewer where the system refused more threads
    barrier_.reset(size_);
  }

  void stop() {
    if (size_ > 1 && owner_ == getpid()) {  // after a fork the workers do not exist
      stopping_.store(true);
      epoch_.fetch_add(1);
      futex_wake_all(epoch_);
      for (int id = 1; id < size_; ++id) pthread_join(threads_[id], nullptr);
      stopping_.store(false);
    }
    size_ = 1;
  }

  std::mutex mutex_;
  int wanted_ = 1, size_ = 1;
  pid_t owner_ = 0;
  Barrier barrier_;
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stopping_{false};
  void (*call_)(const void*, const Worker&) = nullptr;
  const void* body_ = nullptr;
  pthread_t threads_[MAX_THREADS] = {};
  Start starts_[MAX_THREADS] = {};
};

}  // namespace kg
