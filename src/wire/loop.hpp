// The event loop of the thread that moves data between nodes. It never takes Python's interpreter lock.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "../core/futex.hpp"

namespace dragon::wire {

// Between two checks whether the lock of an object was released, or whether a channel has room: the first
// delay, which is doubled each time, and the longest; and between two attempts to allocate memory.
inline constexpr Nanoseconds kLocked = 2'000'000, kLockedLong = 100'000'000, kMemoryRetry = 20'000'000;

// Descriptors, timers and the mutex for all that the thread uses. Every function except run() needs the
// mutex.
class Loop {
  public:
    using Id = uint64_t;
    using OnEvents = std::function<void(uint32_t events)>;

    Loop();
    ~Loop();
    Loop(const Loop&) = delete;

    // Calls `do_it` with the events of a descriptor, as of epoll, level-triggered.
    Id watch(int fd, uint32_t events, OnEvents do_it);
    void change(Id id, uint32_t events);
    void unwatch(Id id);
    // Calls `do_it` after a delay, once.
    Id later(Nanoseconds delay, std::function<void()> do_it);
    void cancel(Id& timer);  // and sets it to 0
    // Called with the mutex: before waiting, and with the text of an exception that a function raised.
    std::function<void()> settle;
    std::function<void(const std::string&)> failed;

    void run();   // until stop()
    void stop();  // may be called without the mutex
    std::mutex mutex;

  private:
    struct Watched {
        int fd;
        OnEvents do_it;
    };
    template <class F>
    void guarded(F f);
    int wait_ms() const;
    void run_timers();
    void wake();

    int epoll_, wake_;
    Id last_ = 0;
    std::atomic<bool> stopped_{false};
    Nanoseconds waits_until_ = 0;  // until when the thread waits; 0: it does not
    std::unordered_map<Id, std::shared_ptr<Watched>> watched_;
    std::map<std::pair<Nanoseconds, Id>, std::function<void()>> timers_;
    std::unordered_map<Id, Nanoseconds> due_;  // of timers
};

}  // namespace dragon::wire
