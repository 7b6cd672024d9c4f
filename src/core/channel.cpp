#include "channel.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace dragon {

namespace {

std::string bell_folder;
std::mutex bells_mutex;
std::map<std::pair<Offset, uint32_t>, int> bells;
int agent_bell = -1;

std::string bell_path(Handle channel) {
    return bell_folder + "/bell-" + std::to_string(channel.offset) + "-" + std::to_string(channel.generation);
}

}  // namespace

void set_bell_folder(const char* path) {
    // A fork waits until other threads of this process release bells_mutex: in the child they would never
    // release it.
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork([] { bells_mutex.lock(); }, [] { bells_mutex.unlock(); },
                       [] { bells_mutex.unlock(); });
    });
    std::lock_guard lock(bells_mutex);
    bell_folder = path;
    for (auto& [channel, fd] : bells) close(fd);
    bells.clear();
    if (agent_bell >= 0) close(agent_bell);
    agent_bell = -1;
}

int open_agent_bell() {
    std::lock_guard lock(bells_mutex);
    if (agent_bell < 0) {
        std::string path = bell_folder + "/bell-agent";
        if (mkfifo(path.c_str(), 0600) != 0 && errno != EEXIST) throw SystemFailure(errno, "mkfifo " + path);
        agent_bell = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (agent_bell < 0) throw SystemFailure(errno, "open " + path);
    }
    return agent_bell;
}

void ring_agent(const void* inside) {
    Arena& a = arena();
    Offset block = a.block_at(static_cast<Offset>(static_cast<const char*>(inside) - a.at<char>(0)));
    // If the FIFO is full, the agent is notified all the same: it then looks at everything.
    if (write(open_agent_bell(), &block, sizeof block) < 0) return;
}

void close_bell(Handle channel) {
    std::lock_guard lock(bells_mutex);
    auto it = bells.find({channel.offset, channel.generation});
    if (it == bells.end()) return;
    close(it->second);
    bells.erase(it);
}

int open_bell(Handle channel) {
    std::lock_guard lock(bells_mutex);
    auto [it, fresh] = bells.try_emplace({channel.offset, channel.generation}, -1);
    if (fresh) {
        std::string path = bell_path(channel);
        if (mkfifo(path.c_str(), 0600) != 0 && errno != EEXIST) throw SystemFailure(errno, "mkfifo " + path);
        it->second = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (it->second < 0) throw SystemFailure(errno, "open " + path);
    }
    return it->second;
}

// Holds the channel's lock, and repairs what the last holder left if it died.
class Channel::Locked {
  public:
    // Locks until the deadline; status() tells whether the lock was taken.
    Locked(Channel& channel, Arena& a, Nanoseconds deadline)
        : Locked(channel, a, channel.lock_.lock(a.self(), deadline)) {}
    // Locks without a deadline.
    Locked(Channel& channel, Arena& a)
        : Locked(channel, a, channel.lock_.hold(a.self()) ? Status::Recovered : Status::Ok) {}
    Locked(Channel& channel, Arena& a, Status status)
        : lock_(channel.lock_), status_(status == Status::Timeout ? Status::Busy : status) {
        if (status_ != Status::Recovered) return;
        try {
            channel.repair(a);
        } catch (...) {
            lock_.unlock();
            throw;
        }
        lock_.repaired();
        status_ = Status::Ok;
    }
    Locked(const Locked&) = delete;
    ~Locked() {
        if (status_ == Status::Ok) lock_.unlock();
    }
    Status status() const { return status_; }

  private:
    SharedLock& lock_;
    Status status_;
};

// Called when the holder of the lock died. The messages that are linked from the head on are those that
// exist.
void Channel::repair(Arena& a) {
    uint64_t count = 0, bytes = 0;
    bool moving_linked = moving_ == 0;
    Offset tail = 0;
    for (Offset b = head_; b; b = a.at<MessageHead>(b)->next) {
        a.disown(b);
        bytes += excess(*a.at<MessageHead>(b));
        moving_linked |= b == moving_;
        tail = b;
        ++count;
    }
    tail_ = tail;
    spare_count_ = 0;
    for (Offset b = spare_; b; b = a.at<MessageHead>(b)->next) {
        a.disown(b);
        moving_linked |= b == moving_;
        ++spare_count_;
    }
    if (!moving_linked) {
        a.at<MessageHead>(moving_)->next = spare_;
        spare_ = moving_;
        ++spare_count_;
    }
    moving_ = 0;
    count_ = count;
    excess_ = bytes;
    readers_.notify_all();
    writers_.notify_all();
    if (bell_.load()) ring(a, false);
    if (bell_.load() && count) ring(a, true);
}

// The bytes that a message occupies beyond the block of a small one.
uint64_t Channel::excess(const MessageHead& head) {
    return head.small ? 0 : std::max<uint64_t>(head.size + kDataStart, kSmallBlock) - kSmallBlock;
}

void Channel::recover(Arena& a, OwnerId dead) {
    if (lock_.settle(dead, a.self())) Locked locked(*this, a, Status::Recovered);
}

// Called by a process that waits: if the holder of the lock is dead, this process completes or undoes what it
// left.
void Channel::look_after_lock(Arena& a) {
    OwnerId holder = lock_.owner();
    if (holder && !a.alive(holder)) Locked locked(*this, a, Nanoseconds{0});
}

// The message exists from the store to the link or the head on. Everything that can fail comes before it.
void Channel::link(Arena& a, Offset block, Side side) {
    if (bell_.load() == kOwn && count_.load() == 0) ring(a, true);
    bool is_only = !head_;
    a.at<MessageHead>(block)->next = side == Side::Front ? Offset{head_} : Offset{0};
    if (is_only || side == Side::Front)
        head_ = block;
    else
        a.at<MessageHead>(tail_)->next = block;
    if (is_only || side == Side::Back) tail_ = block;
    count_.fetch_add(1);
    // It was counted when it was put at first and taken. See unfinished() for the order.
    if (side == Side::Front) done_.fetch_add(1);
}

template <class Insert>
Status Channel::put(Arena& a, Nanoseconds deadline, Side side, Insert insert) {
    Slices slices;
    auto has_room = [&] { return side == Side::Front || !full(); };
    auto try_put = [&] {
        Locked locked(*this, a, deadline);
        if (locked.status() != Status::Ok) return locked.status();
        if (!has_room() || destroyed.load()) return Status::Timeout;
        insert();
        return Status::Ok;
    };
    for (;;) {
        if (destroyed.load() || refuses_.load()) return Status::Destroyed;
        if (is_broken()) return Status::Broken;
        if (has_room()) {
            Status status = try_put();
            if (status == Status::Ok) {
                if (bell_.load() == kAgents) tell_agent();
                readers_.notify_one();
            }
            if (status != Status::Timeout) return status;
        }
        if (deadline == 0 || now() >= deadline) return Status::Timeout;
        auto ready = [this] { return !full() || destroyed.load() || refuses_.load(); };
        if (write_spin_.until(ready)) continue;
        Status status = writers_.sleep(ready, deadline, slices.next());
        if (status == Status::Interrupted) return status;
        if (full()) look_after_lock(a);
    }
}

Status Channel::put_small(Arena& a, Label label, const void* data, Nanoseconds deadline, Side side) {
    // Allocated before the lock is taken, and freed afterwards if a spare block became available meanwhile.
    struct Fresh {
        Arena& a;
        Offset block = 0;
        ~Fresh() {
            if (block) a.free(block);
        }
    } kept{a};
    Offset& fresh = kept.block;
    if (!spare_ && !full()) fresh = a.allocate(sizeof(MessageHead) + kSmall);
    return put(a, deadline, side, [&] {
        Offset block = spare_;
        if (block) {
            moving_ = block;
            spare_ = a.at<MessageHead>(block)->next;
            --spare_count_;
        } else {
            if (!fresh) fresh = a.allocate(sizeof(MessageHead) + kSmall);
            block = fresh;
        }
        auto* head = a.at<MessageHead>(block);
        head->size = label.size;
        head->kind = label.kind;
        head->small = 1;
        head->ticket = label.ticket;
        memcpy(a.at<char>(block) + sizeof(MessageHead), data, label.size);
        link(a, block, side);
        if (block == fresh) {
            a.disown(fresh);
            fresh = 0;
        }
        moving_ = 0;
    });
}

Status Channel::put_block(Arena& a, Label label, Offset block, Nanoseconds deadline, Side side) {
    auto* head = a.at<MessageHead>(block);
    head->size = label.size;
    head->kind = label.kind;
    head->small = 0;
    head->ticket = label.ticket;
    return put(a, deadline, side, [&] {
        link(a, block, side);
        excess_ = excess_ + excess(*head);
        a.disown(block);
    });
}

bool Channel::has_room(Arena& a, size_t size) const {
    uint64_t there = count_.load();
    return there == 0 || (there <= std::max<uint64_t>(kCacheable / size, 1) && a.has_warm(size));
}

// A few blocks that are reused in turn stay in the processors' caches. Messages that pile up are copied from
// main memory at less than half the speed, and the pile remains, as the readers are slowed like the writer.
// So a writer that is ahead lets two messages be taken for each of its own, as long as some process takes
// them. New pages cost more than the wait for a free block.
void Channel::await_room(Arena& a, size_t size) {
    Nanoseconds budget = static_cast<Nanoseconds>(size / 8);  // a quarter of the time that page faults take
    for (int i = 0; i < 2 && !has_room(a, size); ++i) {
        int64_t seen = taken_.load();
        if (!memory_spin_.until([&] { return taken_.load() != seen || has_room(a, size); }, budget)) return;
    }
}

// Timeout: there is no message.
Status Channel::try_get(Arena& a, Message& out, Nanoseconds deadline, std::atomic<uint64_t>* taker) {
    if (count_.load(std::memory_order_relaxed) == 0) return Status::Timeout;
    Offset surplus = 0;
    {
        Locked locked(*this, a, deadline);
        if (locked.status() != Status::Ok) return locked.status();
        Offset block = head_;
        if (!block) return Status::Timeout;
        if (bell_.load() && count_.load() == 1) ring(a, false);
        auto* head = a.at<MessageHead>(block);
        out.label = {static_cast<uint32_t>(head->kind), head->size, head->ticket};
        out.block = head->small ? 0 : block;
        if (head->small) memcpy(out.data, head + 1, head->size);
        if (taker) taker->store(head->ticket);
        if (head->small && spare_count_ < kSpares) {
            moving_ = block;
            head_ = head->next;
            head->next = spare_;
            spare_ = block;
            ++spare_count_;
            moving_ = 0;
        } else {
            a.adopt(block);
            head_ = head->next;
            if (head->small)
                surplus = block;
            else
                excess_ = excess_ - excess(*head);
        }
        if (!head_) tail_ = 0;
        taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        count_.fetch_sub(1);
    }
    if (capacity_ || mebibytes_) writers_.notify_one();
    if (readers_.watchers.load() > 0 && count_.load() == 0) ring_agent(this);
    if (surplus) a.free(surplus);
    return Status::Ok;
}

Status Channel::get(Arena& a, Message& out, Nanoseconds deadline, std::atomic<uint64_t>* taker) {
    Slices slices;
    bool slept = false;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        bool over = is_over();  // read before the queue is found empty: messages put before the end count
        Status taken = try_get(a, out, deadline, taker);
        if (slept && count_.load() > 0) readers_.pass_on();
        if (taken != Status::Timeout) return taken;
        if (over) return over_for_reader();
        if (deadline == 0 || now() >= deadline) return Status::Timeout;
        auto ready = [this] { return readable(); };
        if (read_spin_.until(ready)) continue;
        Status status = readers_.sleep(ready, deadline, slices.next());
        if (status == Status::Interrupted) return status;
        slept = true;
        if (count_.load() == 0) look_after_lock(a);
    }
}

Status Channel::wait_readable(Nanoseconds deadline) {
    Slices slices;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        if (readable()) return Status::Ok;
        if (deadline == 0 || now() >= deadline) return Status::Timeout;
        auto ready = [this] { return readable(); };
        if (read_spin_.until(ready)) continue;
        Status status = readers_.sleep(ready, deadline, slices.next());
        // This waiter takes no message, so another sleeper may have to be woken for it.
        if (count_.load() > 0) readers_.pass_on();
        if (status == Status::Interrupted) return status;
    }
}

// The number of messages that were put and are not done. A message is counted as taken before it is no longer
// counted as present, so reading in this order never gives too low a number.
int64_t Channel::unfinished() const {
    int64_t done = done_.load();
    auto there = static_cast<int64_t>(count_.load());
    return there + taken_.load() - done;
}

bool Channel::task_done() {
    done_.fetch_add(1);
    int64_t left = unfinished();
    if (left < 0) {
        done_.fetch_sub(1);
        return false;
    }
    if (left == 0) joiners_.notify_all();
    return true;
}

Status Channel::join(Nanoseconds deadline) {
    Slices slices;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        if (unfinished() <= 0) return Status::Ok;
        if (now() >= deadline) return Status::Timeout;
        auto ready = [this] { return unfinished() <= 0 || destroyed.load(); };
        if (joiners_.sleep(ready, deadline, slices.next()) == Status::Interrupted) return Status::Interrupted;
    }
}

void Channel::end_went(Arena& a) {
    if (bell_.load() && is_over()) ring(a, true);
    wake_all();
}

void Channel::refuse(bool refuses) {
    refuses_ = refuses;
    writers_.notify_all();
}

void Channel::wake_all() {
    readers_.notify_all();
    writers_.notify_all();
    joiners_.notify_all();
}

void Channel::destroy(Arena& a) {
    destroyed = 1;
    {
        Locked locked(*this, a);
        free_list(a, head_);
        tail_ = 0;
        count_ = 0;
        excess_ = 0;
        if (bell_.load()) ring(a, true);
    }
    wake_all();
}

// The caller holds the lock.
void Channel::free_list(Arena& a, Link& list) {
    while (Offset block = list) {
        a.adopt(block);
        list = a.at<MessageHead>(block)->next;
        a.free(block);
    }
}

void Channel::tear_down(Arena& a) {
    if (bell_.load() == kOwn) {
        auto self = static_cast<Offset>(reinterpret_cast<char*>(this) - a.at<char>(0));
        Handle handle{self, a.meta(self).generation()};
        close_bell(handle);
        unlink(bell_path(handle).c_str());
    }
    Locked locked(*this, a);
    free_list(a, head_);
    free_list(a, spare_);
}

void Channel::enable_bell(Arena& a, Bell which) {
    Locked locked(*this, a);
    if (!bell_.exchange(which) && (count_.load() > 0 || is_over())) ring(a, true);
}

// Called after each put. One process notifies the agent for all that put until the agent takes the messages;
// one that is stopped before it does so keeps no other from it.
void Channel::tell_agent() {
    uint32_t heard = heard_.load();
    if (told_.load() == heard + 1) return;
    ring_agent(this);
    told_ = heard + 1;
}

void Channel::ring(Arena& a, bool readable) {
    if (bell_.load() == kAgents) {
        if (readable) tell_agent();
        return;
    }
    auto self = static_cast<Offset>(reinterpret_cast<char*>(this) - a.at<char>(0));
    int fd = open_bell({self, a.meta(self).generation()});
    char byte = 0;
    if (readable) {
        if (write(fd, &byte, 1) < 0) return;  // the FIFO is full, and therefore readable
    } else if (!is_over()) {
        char bytes[64];
        while (read(fd, bytes, sizeof bytes) > 0);
        if (is_over() && write(fd, &byte, 1) < 0) return;  // its byte may have been among those just read
    }
}

}  // namespace dragon
