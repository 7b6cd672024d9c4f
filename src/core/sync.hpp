// Lock, semaphore, event, condition and words: the objects besides channels on which processes of one node
// wait.
#pragma once

#include "arena.hpp"

namespace dragon {

// A lock as users see it: any thread of any process may release it, unless it is recursive.
class Lock : public Object {
  public:
    explicit Lock(bool recursive) : recursive_(recursive) {}
    Status acquire(OwnerId self, uint64_t thread, Nanoseconds deadline);
    enum class Release { Ok, NotLocked, NotMine };
    Release release(OwnerId self, uint64_t thread);
    bool is_mine(OwnerId self, uint64_t thread) const {
        return lock_.owner() == self && thread_.load() == thread;
    }
    OwnerId owner() const { return lock_.owner(); }
    uint32_t count() const { return lock_.owner() == 0 ? 0 : recursive_ ? count_.load() : 1; }
    bool recursive() const { return recursive_; }
    void watch(uint32_t change) { watchers_.fetch_add(change); }

  private:
    SharedLock lock_;
    Word watchers_{0};  // number of waiters on other nodes
    bool recursive_;
    Word count_{0};
    std::atomic<uint64_t> thread_{0};
};

class Semaphore : public Object {
  public:
    Semaphore(uint32_t value, uint32_t bound) : bound_(bound) { value_ = value; }
    Status acquire(Nanoseconds deadline);
    bool release(uint32_t count);  // false: the value would exceed the bound
    uint32_t value() const { return value_.load(); }
    void destroy();
    void watch(uint32_t change) { sleepers_.watchers.fetch_add(change); }

  private:
    bool try_acquire();
    Word value_{0};
    uint32_t bound_;
    Sleepers sleepers_;
    Spin spin_;
};

class Event : public Object {
  public:
    void set();
    void clear() { flag_ = 0; }
    bool is_set() const { return flag_.load(); }
    Status wait(Nanoseconds deadline);
    void destroy();
    void watch(uint32_t change) { sleepers_.watchers.fetch_add(change); }

  private:
    Word flag_{0};
    Sleepers sleepers_;
    Spin spin_;
};

// Waiters in the order in which they entered. The notification of a waiter that was killed passes to the next
// one.
class Condition : public Object {
  public:
    // The caller of enter() and notify() holds the lock that belongs to the condition.
    Offset enter(Arena& a) { return enter(a, a.self()); }
    // For a process of another node, as the agent.
    Offset enter(Arena& a, OwnerId owner);
    // Ok: notified. The caller does not hold that lock.
    Status sleep(Arena& a, Offset waiter, Nanoseconds deadline);
    // Frees the waiter; returns true if it had been notified.
    bool leave(Arena& a, Offset waiter);
    uint32_t notify(Arena& a, uint32_t count);
    void destroy(Arena& a);
    void recover(Arena& a, OwnerId dead);
    void watch(uint32_t change) { watchers_.fetch_add(change); }
    bool concerns(OwnerId dead) const { return lock_.concerns(dead); }

  private:
    struct Waiter {
        Link next;
        OwnerId owner;
        Word notified;
    };

  public:
    static constexpr size_t kWaiterSize = sizeof(Waiter);

  private:
    void lock(Arena& a);
    void check(Arena& a, Offset waiter) const;
    uint32_t tell(Arena& a, uint32_t count);
    SharedLock lock_;
    Word watchers_{0};  // number of waiters on other nodes
    Link head_;         // waiters that were notified stay in the list until they leave
};

// 64-bit words that processes set, add to and wait on.
class Words : public Object {
  public:
    explicit Words(uint32_t count) : count_(count) {
        for (uint32_t i = 0; i < count; ++i) new (&at(i)) std::atomic<uint64_t>(0);
    }
    static size_t bytes(uint32_t count) { return sizeof(Words) + count * sizeof(uint64_t); }
    uint32_t count() const { return count_; }
    std::atomic<uint64_t>& at(uint32_t i) const {
        return const_cast<std::atomic<uint64_t>*>(
            reinterpret_cast<const std::atomic<uint64_t>*>(this + 1))[i];
    }
    void changed() { sleepers_.notify_all(); }
    // Returns Ok once word `i` differs from `value`.
    Status wait(uint32_t i, uint64_t value, Nanoseconds deadline);
    Word& changes() { return sleepers_.word; }
    Sleepers& sleepers() { return sleepers_; }
    void destroy();
    void watch(uint32_t change) { sleepers_.watchers.fetch_add(change); }

  private:
    uint32_t count_;
    Sleepers sleepers_;
    Spin spin_{false};  // waits are mostly for the end of a process, and so long
};

}  // namespace dragon
