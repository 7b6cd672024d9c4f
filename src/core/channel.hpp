// A first-in first-out queue of messages in the arena, for any number of processes at each end.
//
// A put is atomic: a message is linked whole or not at all, and the store that links it is the last one.
// Whoever finds that the holder of the lock has died walks the list and goes on. Small messages are copied in
// and out of blocks that the channel keeps; larger ones are written by their sender straight into a block
// that then passes to the receiver.
#pragma once

#include "arena.hpp"

namespace dragon {

inline constexpr size_t kSmall = 232;     // bytes of the largest message that is copied under the lock
inline constexpr size_t kDataStart = 64;  // where a large message's data starts in its block
inline constexpr size_t kSmallBlock = 256;

// What the data of a message are, which the channel itself does not look at; and of a task, its ticket.
struct Label {
    uint32_t kind = 0;
    uint64_t size = 0;
    uint64_t ticket = 0;
};

struct MessageHead {
    Link next;
    uint64_t size : 48;
    uint64_t kind : 15;
    uint64_t small : 1;
    uint64_t ticket;
};
static_assert(sizeof(MessageHead) == 24 && sizeof(MessageHead) + kSmall == kSmallBlock);

// A message that was taken: its bytes are here if it was small, else in a block that is the receiver's.
struct Message {
    Label label;
    Offset block = 0;
    alignas(16) char data[kSmall];
};

// As what users know a channel, for whoever measures the run. The runtime's own have the number 0.
struct Origin {
    uint32_t number = 0;    // by which the node tells it from others
    uint64_t maker = 0;     // the process that made it, by its id in the run
    Handle results, doing;  // of a pool whose tasks these are: its results, its workers' words
};

class Channel : public Object {
  public:
    // `capacity` messages at most (0: as many as there is memory), and no more once they take so many
    // mebibytes (0: any). A pipe knows its ends, a queue does not.
    Channel(uint64_t capacity, bool pipe, const Origin& origin = {}, uint16_t mebibytes = 0)
        : results_(origin.results),
          doing_(origin.doing),
          capacity_(capacity),
          maker_(origin.maker),
          number_(origin.number),
          mebibytes_(mebibytes),
          pipe_(pipe) {}

    Status put_small(Arena& a, Label label, const void* data, Nanoseconds deadline);
    // On success the block belongs to the channel; otherwise it is still the caller's.
    Status put_block(Arena& a, Label label, Offset block, Nanoseconds deadline);
    // Whether a large message can be written at full speed; and a moment's wait for that.
    bool has_room(Arena& a, size_t size) const;
    void await_room(Arena& a, size_t size);
    // `taker` holds the ticket of the message from before it is taken. So where its taker dies, at whatever
    // point, it is known what it had.
    Status get(Arena& a, Message& out, Nanoseconds deadline, std::atomic<uint64_t>* taker = nullptr);
    Status wait_readable(Nanoseconds deadline);

    uint64_t size() const { return count_.load(); }
    uint64_t capacity() const { return capacity_; }
    bool pipe() const { return pipe_; }
    uint64_t taken() const { return static_cast<uint64_t>(taken_.load()); }
    // In which its messages lie.
    uint64_t bytes() const { return count_.load() * kSmallBlock + excess_.acquire(); }
    // Read without a lock, by who then makes sure that the channel was there.
    Origin origin() const {
        auto load = [](const auto& value) { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); };
        return {load(number_),
                load(maker_),
                {load(results_.offset), load(results_.generation)},
                {load(doing_.offset), load(doing_.generation)}};
    }
    bool full() const {
        return (capacity_ && count_.load() >= capacity_) || (mebibytes_ && bytes() >> 20 >= mebibytes_);
    }
    bool readable() const { return count_.load() > 0 || is_over(); }
    Word& arrivals() { return readers_.word; }
    Sleepers& readers() { return readers_; }

    // Returns false if there were more calls than messages. For joinable queues.
    bool task_done();
    Status join(Nanoseconds deadline);

    void destroy(Arena& a);
    // The agent looks for waiters on other nodes, or no longer.
    void watch(uint32_t change) {
        for (Sleepers* s : {&readers_, &writers_, &joiners_}) s->watchers.fetch_add(change);
    }

    void end_went(Arena& a);  // the last reader or writer is gone
    void tear_down(Arena& a);
    bool concerns(OwnerId dead) const { return lock_.concerns(dead); }
    OwnerId holder() const { return lock_.owner(); }  // of its lock, at this moment
    void recover(Arena& a, OwnerId dead);

    // From now on the bell of this channel, a FIFO file, holds a byte whenever there is something to read; or
    // the agent hears of this channel, which only the agent reads, each time that there is something again.
    enum Bell : uint32_t { kOwn = 1, kAgents = 2 };
    void enable_bell(Arena& a, Bell which);

  private:
    class Locked;
    template <class Append>
    Status put(Arena& a, Nanoseconds deadline, Append append);
    void wake_all();
    Status try_get(Arena& a, Message& out, Nanoseconds deadline, std::atomic<uint64_t>* taker);
    void append(Arena& a, Offset block);
    void free_list(Arena& a, Link& list);
    void repair(Arena& a);
    static uint64_t excess(const MessageHead& head);
    void look_after_lock(Arena& a);
    void ring(Arena& a, bool readable);
    bool is_over() const { return destroyed.load() || (pipe_ && end_is_gone(Role::Writer)); }
    bool is_broken() const { return pipe_ && end_is_gone(Role::Reader); }
    Status over_for_reader() const { return destroyed.load() ? Status::Destroyed : Status::EndOfFile; }
    int64_t unfinished() const;

    static constexpr uint32_t kSpares = 256;
    static constexpr uint64_t kCacheable = 4 << 20;  // bytes

    Handle results_, doing_;
    alignas(64) SharedLock lock_;
    Word bell_{0};
    Link head_, tail_;
    std::atomic<uint64_t> count_{0};
    std::atomic<int64_t> taken_{0};  // messages that were taken, ever
    Link spare_;
    Link moving_;  // a small block that is neither spare nor linked at this moment
    uint32_t spare_count_ = 0;
    alignas(64) Sleepers readers_;
    Sleepers writers_;
    Sleepers joiners_;
    Spin read_spin_, write_spin_, memory_spin_;
    uint64_t capacity_;
    std::atomic<int64_t> done_{0};  // calls of task_done()
    Ordered<uint64_t> excess_;      // bytes that large messages take beyond small ones
    uint64_t maker_;
    uint32_t number_;
    uint16_t mebibytes_;
    bool pipe_;
};
// Four cache lines, of which only the second changes with every message that is put or taken.
static_assert(sizeof(Channel) == 256);

// The bells of this process's run are FIFO files in this folder.
void set_bell_folder(const char* path);
// The agent hears of changes to what it watches from this descriptor: the offsets of the objects, 8 bytes
// each.
int open_agent_bell();
// The descriptor of a channel's bell, which stays open.
int open_bell(Handle channel);
// This process needs it no more.
void close_bell(Handle channel);

}  // namespace dragon
