#include "channel.hpp"

#include <fcntl.h>
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

std::string bell_path(Handle channel) {
    return bell_folder + "/bell-" + std::to_string(channel.offset) + "-" + std::to_string(channel.generation);
}

}  // namespace

void set_bell_folder(const char* path) {
    std::lock_guard lock(bells_mutex);
    bell_folder = path;
    for (auto& [channel, fd] : bells) close(fd);
    bells.clear();
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

void Channel::lock(Arena& a) {
    if (lock_.hold(a.self())) repair(a);
}

// The holder of the lock died. What is linked from the head on is what there is.
void Channel::repair(Arena& a) {
    uint64_t count = 0;
    bool moving_linked = moving_ == 0;
    tail_ = 0;
    for (Offset b = head_; b; b = a.at<MessageHead>(b)->next) {
        a.disown(b);
        moving_linked |= b == moving_;
        tail_ = b;
        ++count;
    }
    spare_count_ = 0;
    for (Offset b = spare_; b; b = a.at<MessageHead>(b)->next) {
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
    if (bell_.load()) {
        ring(a, false);
        if (count) ring(a, true);
    }
    readers_.notify_all();
    writers_.notify_all();
}

void Channel::recover(Arena& a, OwnerId dead) {
    if (!lock_.take_from_dead(dead, a.self())) return;
    repair(a);
    lock_.unlock();
}

// The last store, to the link or the head, is what makes the message exist.
void Channel::append(Arena& a, Offset block) {
    a.at<MessageHead>(block)->next = 0;
    std::atomic_signal_fence(std::memory_order_release);
    if (head_)
        a.at<MessageHead>(tail_)->next = block;
    else
        head_ = block;
    tail_ = block;
    if (count_.fetch_add(1) == 0 && bell_.load()) ring(a, true);
    unfinished_.fetch_add(1, std::memory_order_relaxed);
}

template <class Link>
Status Channel::put(Arena& a, Nanoseconds deadline, Link link) {
    Slices slices;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        if (pipe_ && end_is_gone(Role::Reader)) return Status::Broken;
        if (!full()) {
            lock(a);
            if (!full()) {
                link();
                lock_.unlock();
                readers_.notify_one();
                return Status::Ok;
            }
            lock_.unlock();
        }
        if (deadline == 0 || now() >= deadline) return Status::Timeout;
        auto ready = [this] { return !full() || destroyed.load(); };
        if (write_spin_.until(ready)) continue;
        Status status = writers_.sleep(ready, deadline, slices.next());
        if (status == Status::Interrupted) return status;
    }
}

Status Channel::put_small(Arena& a, Label label, const void* data, Nanoseconds deadline) {
    Offset fresh = 0;
    Status status = put(a, deadline, [&] {
        Offset block = spare_;
        if (block) {
            moving_ = block;
            std::atomic_signal_fence(std::memory_order_release);
            spare_ = a.at<MessageHead>(block)->next;
            --spare_count_;
        } else {
            try {
                block = fresh = a.allocate(sizeof(MessageHead) + kSmall);
            } catch (...) {
                lock_.unlock();
                throw;
            }
        }
        auto* head = a.at<MessageHead>(block);
        head->size = label.size;
        head->kind = label.kind;
        head->small = 1;
        memcpy(head + 1, data, label.size);
        append(a, block);
        if (fresh) a.disown(fresh);
        moving_ = 0;
    });
    return status;
}

Status Channel::put_block(Arena& a, Label label, Offset block, Nanoseconds deadline) {
    auto* head = a.at<MessageHead>(block);
    head->size = label.size;
    head->kind = label.kind;
    head->small = 0;
    return put(a, deadline, [&] {
        append(a, block);
        a.disown(block);
    });
}

void Channel::await_warm(Arena& a, size_t size) {
    Nanoseconds budget = static_cast<Nanoseconds>(size / 8);  // a quarter of what the page faults would take
    if (!a.has_warm(size) && count_.load() > 0)
        memory_spin_.until([&] { return a.has_warm(size) || count_.load() == 0; }, budget);
}

bool Channel::try_get(Arena& a, Message& out) {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    lock(a);
    Offset block = head_;
    if (!block) {
        lock_.unlock();
        return false;
    }
    auto* head = a.at<MessageHead>(block);
    out.label = {static_cast<uint32_t>(head->kind), head->size};
    Offset surplus = 0;
    if (head->small) {
        out.block = 0;
        memcpy(out.data, head + 1, head->size);
        if (spare_count_ < kSpares) {
            moving_ = block;
            std::atomic_signal_fence(std::memory_order_release);
            head_ = head->next;
            head->next = spare_;
            spare_ = block;
            ++spare_count_;
            moving_ = 0;
        } else {
            a.adopt(surplus = block);
            head_ = head->next;
        }
    } else {
        a.adopt(out.block = block);
        head_ = head->next;
    }
    if (!head_) tail_ = 0;
    if (count_.fetch_sub(1) == 1 && bell_.load()) ring(a, false);
    lock_.unlock();
    if (capacity_) writers_.notify_one();
    if (surplus) a.free(surplus);
    return true;
}

Status Channel::get(Arena& a, Message& out, Nanoseconds deadline) {
    Slices slices;
    bool slept = false;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        bool over = is_over();  // read before the queue is seen to be empty: what came before the end counts
        if (try_get(a, out)) {
            if (slept && count_.load() > 0) readers_.pass_on();
            return Status::Ok;
        }
        if (over) return over_for_reader();
        if (deadline == 0 || now() >= deadline) return Status::Timeout;
        auto ready = [this] { return readable(); };
        if (read_spin_.until(ready)) continue;
        Status status = readers_.sleep(ready, deadline, slices.next());
        if (status == Status::Interrupted) return status;
        slept = true;
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
        // It took no message, so another sleeper may have to be told of it.
        if (count_.load() > 0) readers_.pass_on();
        if (status == Status::Interrupted) return status;
    }
}

bool Channel::task_done() {
    int64_t left = unfinished_.fetch_sub(1) - 1;
    if (left < 0) {
        unfinished_.fetch_add(1);
        return false;
    }
    if (left == 0) joiners_.notify_all();
    return true;
}

Status Channel::join(Nanoseconds deadline) {
    Slices slices;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        if (unfinished_.load() <= 0) return Status::Ok;
        if (now() >= deadline) return Status::Timeout;
        auto ready = [this] { return unfinished_.load() <= 0 || destroyed.load(); };
        if (joiners_.sleep(ready, deadline, slices.next()) == Status::Interrupted) return Status::Interrupted;
    }
}

void Channel::end_went() {
    if (bell_.load() && has_arena()) ring(arena(), true);
    readers_.notify_all();
    writers_.notify_all();
}

void Channel::destroy(Arena& a) {
    destroyed = 1;
    lock(a);
    Offset list = head_;
    if (list) a.adopt(list);  // the rest hangs on it and is freed here
    head_ = tail_ = 0;
    count_ = 0;
    lock_.unlock();
    while (list) {
        Offset next = a.at<MessageHead>(list)->next;
        if (next) a.adopt(next);
        a.free(list);
        list = next;
    }
    end_went();
    joiners_.notify_all();
}

void Channel::tear_down(Arena& a) {
    if (bell_.load()) {
        auto self = static_cast<Offset>(reinterpret_cast<char*>(this) - a.at<char>(0));
        Handle handle{self, a.meta(self).generation()};
        std::lock_guard lock(bells_mutex);
        if (auto it = bells.find({handle.offset, handle.generation}); it != bells.end()) {
            close(it->second);
            bells.erase(it);
        }
        unlink(bell_path(handle).c_str());
    }
    for (Offset* list : {&head_, &spare_})
        while (Offset block = *list) {
            *list = a.at<MessageHead>(block)->next;
            a.free(block);
        }
}

void Channel::enable_bell(Arena& a) {
    lock(a);
    if (!bell_.exchange(1) && (count_.load() > 0 || is_over())) ring(a, true);
    lock_.unlock();
}

void Channel::ring(Arena& a, bool readable) {
    auto self = static_cast<Offset>(reinterpret_cast<char*>(this) - a.at<char>(0));
    int fd = open_bell({self, a.meta(self).generation()});
    char byte = 0;
    if (readable) {
        if (write(fd, &byte, 1) < 0) return;  // full, and so readable
    } else if (!is_over()) {
        char bytes[64];
        while (read(fd, bytes, sizeof bytes) > 0);
    }
}

}  // namespace dragon
