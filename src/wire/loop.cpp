#include "loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../core/arena.hpp"

namespace dragon::wire {

namespace {

constexpr int kAtOnce = 64;  // events

int checked(int fd, const char* what) {
    if (fd < 0) throw SystemFailure(errno, what);
    return fd;
}

}  // namespace

Loop::Loop()
    : epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")) {
    epoll_event event{EPOLLIN, {.u64 = 0}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
}

Loop::~Loop() {
    close(epoll_);
    close(wake_);
}

Loop::Id Loop::watch(int fd, uint32_t events, OnEvents do_it) {
    Id id = ++last_;
    epoll_event event{events, {.u64 = id}};
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) throw SystemFailure(errno, "epoll_ctl");
    watched_.emplace(id, std::make_shared<Watched>(Watched{fd, std::move(do_it)}));
    return id;
}

void Loop::change(Id id, uint32_t events) {
    epoll_event event{events, {.u64 = id}};
    epoll_ctl(epoll_, EPOLL_CTL_MOD, watched_.at(id)->fd, &event);
}

void Loop::unwatch(Id id) {
    auto found = watched_.find(id);
    if (found == watched_.end()) return;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, found->second->fd, nullptr);
    watched_.erase(found);
}

Loop::Id Loop::later(Nanoseconds delay, std::function<void()> do_it) {
    Id id = ++last_;
    Nanoseconds due = now() + delay;
    timers_.emplace(std::pair{due, id}, std::move(do_it));
    due_.emplace(id, due);
    if (due < waits_until_) wake();
    return id;
}

void Loop::cancel(Id& timer) {
    if (auto found = due_.find(timer); found != due_.end()) {
        timers_.erase({found->second, timer});
        due_.erase(found);
    }
    timer = 0;
}

void Loop::wake() {
    uint64_t one = 1;
    if (write(wake_, &one, sizeof one) < 0) return;  // it is awake already
}

void Loop::stop() {
    stopped_ = true;
    wake();
}

template <class F>
void Loop::guarded(F f) {
    try {
        f();
    } catch (const std::exception& error) {
        if (failed) failed(error.what());
    }
}

int Loop::wait_ms() const {
    if (timers_.empty()) return -1;
    Nanoseconds left = timers_.begin()->first.first - now();
    return left <= 0 ? 0 : static_cast<int>(std::min<Nanoseconds>((left + 999'999) / 1'000'000, 1'000'000));
}

void Loop::run_timers() {
    // Only those that are due now: one that starts another must not keep the loop from its descriptors.
    for (Nanoseconds time = now(); !timers_.empty() && timers_.begin()->first.first <= time;) {
        auto timer = timers_.begin();
        auto do_it = std::move(timer->second);
        due_.erase(timer->first.second);
        timers_.erase(timer);
        guarded(do_it);
    }
}

void Loop::run() {
    std::unique_lock lock(mutex);
    epoll_event events[kAtOnce];
    while (!stopped_) {
        if (settle) guarded(settle);
        int wait = wait_ms();
        waits_until_ = timers_.empty() ? kForever : timers_.begin()->first.first;
        lock.unlock();
        int count = epoll_wait(epoll_, events, kAtOnce, wait);
        lock.lock();
        waits_until_ = 0;
        for (int i = 0; i < count; ++i) {
            if (events[i].data.u64 == 0) {
                uint64_t number;
                if (read(wake_, &number, sizeof number) < 0) continue;
                continue;
            }
            auto found = watched_.find(events[i].data.u64);
            if (found == watched_.end()) continue;  // an earlier one has ended it
            auto watched = found->second;
            guarded([&] { watched->do_it(events[i].events); });
        }
        run_timers();
    }
}

}  // namespace dragon::wire
