// A first-in first-out queue of messages in the arena, for any number of processes at each end.
//
// A put is atomic: a message is linked completely or not at all, and the store that links it is the last one.
// A process that finds that the holder of the lock has died walks the list and repairs the counts. Small
// messages are copied in and out of blocks that the channel keeps. A sender writes a large message directly
// into a block, which then passes to the receiver.
#pragma once

#include "arena.hpp"

namespace dragon {

inline constexpr size_t kSmall = 232;     // bytes of the largest message that is copied under the lock
inline constexpr size_t kDataStart = 64;  // where a large message's data starts in its block
inline constexpr size_t kSmallBlock = 256;

// The kind and size of a message's data, which the channel itself does not interpret, and for a task its
// ticket.
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

// A message that was taken. The bytes of a small message are in `data`; a large one is in `block`, which the
// receiver owns.
struct Message {
    Label label;
    Offset block = 0;
    alignas(16) char data[kSmall];
};

// How a channel is named to users who measure the run. The runtime's own channels have the number 0.
struct Origin {
    uint32_t number = 0;    // unique on the node
    uint64_t maker = 0;     // puid of the process that made it
    Handle results, doing;  // if these are the tasks of a pool: its results, and the words of its workers
};

// Where a message is put: behind all others, or before them. The latter is for a message that was taken for a
// receiver which did not get it. It is put whether or not the channel is full, and counts as the same
// message.
enum class Side { Back, Front };

class Channel : public Object {
  public:
    // Holds at most `capacity` messages (0: as many as memory allows), and accepts no more once they occupy
    // `mebibytes` MiB (0: no limit). A pipe counts its readers and writers, a queue does not.
    Channel(uint64_t capacity, bool pipe, const Origin& origin = {}, uint16_t mebibytes = 0)
        : results_(origin.results),
          doing_(origin.doing),
          capacity_(capacity),
          maker_(origin.maker),
          number_(origin.number),
          mebibytes_(mebibytes),
          pipe_(pipe) {}

    Status put_small(Arena& a, Label label, const void* data, Nanoseconds deadline, Side side = Side::Back);
    // On success the channel owns the block; otherwise the caller still does.
    Status put_block(Arena& a, Label label, Offset block, Nanoseconds deadline, Side side = Side::Back);
    // has_room() returns whether a large message can be written at full speed; await_room() waits briefly
    // until it can.
    bool has_room(Arena& a, size_t size) const;
    void await_room(Arena& a, size_t size);
    // The ticket of the message is stored in `taker` before the message is taken, so that if its taker dies
    // at any point, it is known which message it had.
    Status get(Arena& a, Message& out, Nanoseconds deadline, std::atomic<uint64_t>* taker = nullptr);
    Status wait_readable(Nanoseconds deadline);

    uint64_t size() const { return count_.load(); }
    uint64_t capacity() const { return capacity_; }
    bool pipe() const { return pipe_; }
    uint64_t taken() const { return static_cast<uint64_t>(taken_.load()); }
    // The bytes of shared memory that the messages occupy.
    uint64_t bytes() const { return count_.load() * kSmallBlock + excess_.acquire(); }
    // Read without a lock; the caller checks afterwards that the channel still exists.
    Origin origin() const {
        auto load = [](const auto& value) { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); };
        return {load(number_),
                load(maker_),
                {load(results_.offset), load(results_.generation)},
                {load(doing_.offset), load(doing_.generation)}};
    }
    // Whether a put would wait. It fails at once for a pipe without readers.
    bool full() const {
        bool many = (capacity_ && count_.load() >= capacity_) || (mebibytes_ && bytes() >> 20 >= mebibytes_);
        return many && !is_broken();
    }
    bool readable() const { return count_.load() > 0 || is_over(); }
    // Has puts fail, as for a destroyed channel, until this is revoked. Messages in it stay.
    void refuse(bool refuses);
    Word& arrivals() { return readers_.word; }
    Sleepers& readers() { return readers_; }

    // For joinable queues. Returns false if there were more calls than messages.
    bool task_done();
    Status join(Nanoseconds deadline);

    void destroy(Arena& a);
    // Adds `change` to the number of waiters on other nodes, for which the agent watches.
    void watch(uint32_t change) {
        for (Sleepers* s : {&readers_, &writers_, &joiners_}) s->watchers.fetch_add(change);
    }

    void end_went(Arena& a);  // the last reader or writer is gone
    void tear_down(Arena& a);
    bool concerns(OwnerId dead) const { return lock_.concerns(dead); }
    OwnerId holder() const { return lock_.owner(); }  // of the lock, at this moment
    void recover(Arena& a, OwnerId dead);

    // Enables the bell of this channel. kOwn: a FIFO file that holds a byte whenever there is something to
    // read. kAgents: for a channel that only the agent reads; the agent is notified of
    // messages that were put since it last took some.
    enum Bell : uint32_t { kOwn = 1, kAgents = 2 };
    void enable_bell(Arena& a, Bell which);
    // Called by the agent before it takes what is in the channel: it is notified of what is put from now on.
    void heard() { heard_.fetch_add(1); }

  private:
    class Locked;
    template <class Insert>
    Status put(Arena& a, Nanoseconds deadline, Side side, Insert insert);
    void wake_all();
    Status try_get(Arena& a, Message& out, Nanoseconds deadline, std::atomic<uint64_t>* taker);
    void link(Arena& a, Offset block, Side side);
    void free_list(Arena& a, Link& list);
    void repair(Arena& a);
    static uint64_t excess(const MessageHead& head);
    void look_after_lock(Arena& a);
    void ring(Arena& a, bool readable);
    void tell_agent();
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
    std::atomic<int64_t> taken_{0};  // messages taken since the channel was made
    Link spare_;
    Link moving_;  // a small block that is neither spare nor linked at this moment
    uint32_t spare_count_ = 0;
    alignas(64) Sleepers readers_;
    Sleepers writers_;
    Sleepers joiners_;
    Spin read_spin_, write_spin_, memory_spin_;
    uint64_t capacity_;
    std::atomic<int64_t> done_{0};  // calls of task_done()
    Ordered<uint64_t> excess_;      // bytes that large messages occupy beyond kSmallBlock each
    uint64_t maker_;
    uint32_t number_;
    uint16_t mebibytes_;
    bool pipe_;
    std::atomic<bool> refuses_{false};
    Word heard_{0},
        told_{0};  // of a channel with the agent's bell: how often it was emptied; see tell_agent()
};
// Four cache lines, of which only the second changes with each message that is put or taken.
static_assert(sizeof(Channel) == 256);

// Sets the folder of the FIFO files that are the bells of this process's run.
void set_bell_folder(const char* path);
// Returns the descriptor from which the agent reads the changes to watched objects: the offset of each
// object, 8 bytes.
int open_agent_bell();
// Returns the descriptor of a channel's bell. It stays open until close_bell().
int open_bell(Handle channel);
// Closes it, when this process no longer needs it.
void close_bell(Handle channel);

}  // namespace dragon
