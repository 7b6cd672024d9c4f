// The node's shared memory: one sparse memfd, mapped by every process of the node, named by offsets.
//
// Guarantees
//  - Memory is reserved in the kernel before it is handed out: running out is an OutOfMemory, never a SIGBUS.
//  - Every block has an owner: a process, or nobody when it is linked into a shared structure or is a shared
//  object.
//    A block is marked as owned before it is unlinked and unmarked after it is linked, so that whatever a
//    process held when it was killed is found and freed by reap().
//  - Every lock names its owner; who finds the owner dead repairs the structure first (see SharedLock).
//  Repairs can
//    be interrupted and begun again like everything else.
//  - A process that is stopped at any step delays only those that use the same object. Lists of free blocks
//  are never waited for: see FreeList. No lock but an object's own is held over a copy or a system call.
//  - Locks are taken in this order: that of an object's references, a channel's or a condition's, a list's.
//  - A shared object lives while a process is attached to it or a message carries it; what a dead process was
//    attached to is released by reap().
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lock.hpp"

namespace dragon {

using Offset = uint64_t;  // from the start of the arena; 0 is "none"

struct OutOfMemory : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct ObjectDestroyed : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct NoSuchRole : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct SystemFailure : std::runtime_error {
    SystemFailure(int error, const std::string& what) : std::runtime_error(what), error(error) {}
    int error;
};

// A value in shared memory whose stores stay in the order of the program: a process that is killed between
// two of them leaves all that came before and nothing of what comes after.
template <class T>
class Ordered {
  public:
    Ordered(T value = 0) : value_(value) {}
    Ordered(const Ordered&) = delete;
    operator T() const { return value_.load(std::memory_order_relaxed); }
    // The same for who reads without a lock: what it reads afterwards is no older.
    T acquire() const { return value_.load(std::memory_order_acquire); }
    T operator=(T value) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
        value_.store(value, std::memory_order_release);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        return value;
    }
    T operator=(const Ordered& other) { return *this = static_cast<T>(other); }

  private:
    std::atomic<T> value_;
};
using Link = Ordered<Offset>;

// Cold: a block that has no pages, or is about to lose or get them.
enum class Kind : uint8_t { Free = 0, Data, Channel, Lock, Semaphore, Event, Condition, Words, Cold };
inline bool is_object(Kind kind) { return kind >= Kind::Channel && kind <= Kind::Words; }

// What is known of a block, kept apart from it so that the pages of a freed block can be given back.
struct Meta {
    Ordered<OwnerId> owner;
    Ordered<uint32_t> generation_and_kind;  // generation in the upper 24 bits
    Link next;

    uint32_t generation() const { return generation_and_kind >> 8; }
    uint32_t acquire_generation() const { return generation_and_kind.acquire() >> 8; }
    Kind kind() const { return static_cast<Kind>(generation_and_kind & 0xff); }
    // A generation is never 0, so that a block that was never made is known by its zeros.
    void set(uint32_t generation, Kind kind) {
        if (generation << 8 == 0) generation = 1;
        generation_and_kind = generation << 8 | static_cast<uint32_t>(kind);
    }
    // Makes the block. False: it was made before.
    bool make(OwnerId first_owner, uint32_t generation) {
        Meta made;
        made.owner = first_owner;
        made.set(generation, Kind::Data);
        uint64_t nothing = 0, something;
        memcpy(&something, &made, sizeof something);
        return __atomic_compare_exchange_n(reinterpret_cast<uint64_t*>(this), &nothing, something, false,
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
};
static_assert(sizeof(Meta) == 16 && alignof(Meta) == 8 && offsetof(Meta, generation_and_kind) == 4);

// What an attachment is for. Ends of a pipe are counted apart, so that the other end learns of the last one's
// going.
enum class Role : uint32_t { Plain = 0, Reader = 1, Writer = 2 };

// In the name of an object that goes to another process, the index of its node stands above the role.
inline constexpr uint32_t kNodeShift = 8;
inline Role role_of(uint32_t role_and_node) {
    return static_cast<Role>(role_and_node & ((1u << kNodeShift) - 1));
}

// The head of every shared object. The counts change under one lock (see Arena::Change) and are read without
// it, so each of them is one word: attached processes in the lower half, messages that carry the object in
// the upper.
struct Object {
    std::atomic<uint64_t> references{0};
    std::array<std::atomic<uint64_t>, 2> ends{};  // those of them that are readers and writers
    Word destroyed{0};

    bool end_is_gone(Role role) const { return end(role).load() == 0; }
    const std::atomic<uint64_t>& end(Role role) const { return ends[static_cast<size_t>(role) - 1]; }
    uint64_t in_flight(Role role) const {
        if (role != Role::Plain) return end(role).load() >> 32;
        return (references.load() >> 32) - (ends[0].load() >> 32) - (ends[1].load() >> 32);
    }
    void count(Role role, uint64_t change) {
        if (role != Role::Plain) ends[static_cast<size_t>(role) - 1].fetch_add(change);
        references.fetch_add(change);
    }
};

struct Handle {
    Offset offset = 0;
    uint32_t generation = 0;
};

struct Usage {
    uint64_t limit, committed, in_use, blocks;
};

struct SlotInfo {
    OwnerId owner;
    pid_t pid;
    uint64_t blocks;
};

// What the waiting process would do. None: nobody waits there.
// Or what it did besides waiting: a task of a pool.
enum class Purpose : uint8_t { None = 0, Get, Put, Read, Join, Acquire, Wait, Task };

struct WaitInfo {
    pid_t pid;
    uint64_t thread;
    Purpose purpose;
    Offset object;
    Kind kind;  // Free or Data where the object is gone
    Nanoseconds since;
    // The processes that have a handle of it; the same for all that wait for it, who may be many.
    std::shared_ptr<const std::vector<pid_t>> attached;
};

// A wait that is over, or something that was noted. `what` is the object, or what the process gave.
struct SpanInfo {
    pid_t pid;
    uint64_t thread;
    Purpose purpose;
    Kind kind;
    uint64_t what;
    Nanoseconds start, end;
};

// A queue of a user's, or the tasks of a pool.
struct QueueInfo {
    Offset offset;
    uint32_t number;
    uint64_t maker;             // the process that made it, by its id in the run
    uint64_t size, taken;       // messages: there now, and taken ever
    uint64_t bytes;             // of shared memory, in which those that are there lie
    uint32_t getting, putting;  // processes that wait to get, and to put
    bool pool;
    uint64_t attached, running, done;  // of a pool: who has it, tasks that run, results that came
};

inline constexpr size_t kClasses = 6 + 1 + 26 * 4;
inline constexpr size_t kSlots = 1 << 13;
inline constexpr size_t kSpans = 1 << 14;

struct Header;
struct Slot;
struct ClassState;
struct FreeList;
struct Guard;
struct Entry;

class Arena {
  public:
    // A new arena that may hold `limit` bytes at most.
    explicit Arena(uint64_t limit);
    // The arena behind a descriptor that another process made.
    static Arena* open(int fd);

    int fd() const { return fd_; }
    uint64_t id() const;

    Offset allocate(size_t size);  // owned by this process
    void free(Offset block);
    bool has_warm(size_t size) const;  // whether a block of that size could be had without new pages
    size_t capacity(Offset block) const { return class_size(class_of(block)); }
    template <class T>
    T* at(Offset offset) const {
        if (sparse_.load(std::memory_order_relaxed)) [[unlikely]]
            reach(offset);
        return reinterpret_cast<T*>(base_ + offset);
    }
    Meta& meta(Offset block) const;
    Offset block_at(Offset inside) const;  // the block in which that lies
    void adopt(Offset block);              // the block becomes this process's
    void disown(Offset block);             // the block is linked into a shared structure

    // Makes a shared object in a new block, attached in `role` by this process.
    template <class T, class... Args>
    Handle create(Kind kind, Role role, size_t size, Args&&... args) {
        Offset block = allocate(size);
        new (at<T>(block)) T(std::forward<Args>(args)...);
        attach_new(block, kind, role);
        return {block, meta(block).generation()};
    }
    // Attaches this process; throws ObjectDestroyed where the object is gone.
    void attach(Handle handle, Kind kind, Role role);
    void release(Handle handle, Role role, Nanoseconds limit = kForever);
    // A message carries the object from now on, until somebody attaches or this process ends.
    void send(Handle handle, Role role);
    // Attaches a process that is about to be forked, on whose behalf `owner` was reserved.
    void attach_for(OwnerId owner, Handle handle, Role role);
    // What a guest, a process of another node with a slot here, does: attach, release, send.
    void guest_attach(OwnerId guest, Handle handle, Role role);
    void guest_release(OwnerId guest, Handle handle, Role role);
    void guest_send(OwnerId guest, Handle handle, Role role);
    // The guest's process has ended.
    void guest_left(OwnerId guest);
    // This process acts as that guest from now on; returns whom it was acting as.
    OwnerId act_as(OwnerId guest) {
        OwnerId before = self();
        self_ = guest;
        return before;
    }
    bool exists(Handle handle) const;
    // Whether it is a block that is no object, of that size or more.
    bool is_data(Offset block, size_t size) const;

    OwnerId self();          // this process's id; claims a slot the first time
    OwnerId reserve_slot();  // for a process to be forked
    void fill_slot(OwnerId owner, pid_t pid);
    // The same, where the process itself will take the slot and tell when it started.
    void promise_slot(OwnerId owner, pid_t pid);
    void take_slot(OwnerId owner);  // unless it was reserved for another process, above this one
    // As release(), but what cannot be released now is when something else is.
    void release_when_possible(Handle handle, Role role);
    void release_late();
    // This process ends in order: what it is attached to is released, unless it holds blocks still. Then it
    // is left to reap(). Nothing in the arena may be used afterwards.
    bool leave();
    bool alive(OwnerId owner) const;
    pid_t pid_of(OwnerId owner) const;
    // Whether a process is known to be dead already: cheaper than alive(), which asks the kernel.
    bool reaped(OwnerId owner) const;
    // Frees what a dead child of this process left, once it was waited for. Returns whether there was such a
    // process.
    bool reap(pid_t pid);
    int reap_dead();
    size_t processes(SlotInfo* out, size_t capacity) const;

    // This thread waits for that object, or no longer. The place is -1 where too many threads of it wait.
    int begin_wait(Offset object, Purpose purpose, uint64_t thread, Nanoseconds since);
    void end_wait(int place);
    // What every process waits for, as far as it was noted. The only calls of a process that is none of the
    // run's: they claim no slot.
    std::vector<WaitInfo> waits() const;
    void inquire(Nanoseconds until);  // have waiting processes report themselves, until then
    bool asked() const;
    // While it is on, waits are noted when they are over, and what processes note besides.
    void trace(bool on);
    bool tracing() const;
    void note_span(uint64_t what, Purpose purpose, uint64_t thread, Nanoseconds start);
    // What was noted from number `next` on, which becomes that of the next call. Spans that others have taken
    // the place of meanwhile are counted in `lost`.
    std::vector<SpanInfo> take_spans(uint64_t& next, uint64_t& lost) const;
    // The number of the next queue or pool of a user's on this node: 1, 2, 3 …
    uint32_t next_queue();
    // The channels with such a number among `most` of the blocks in which channels lie, from the one with the
    // index `first` on, and the index to go on with: 0 after the last. Looks only: no lock, no slot.
    std::vector<Offset> find_queues(uint64_t first, uint64_t most, uint64_t& next) const;
    // The state of those of them that are there still.
    std::vector<QueueInfo> queues(const std::vector<Offset>& offsets) const;

    // The process whose end is the end of the run: the agent.
    void set_keeper(OwnerId owner);
    bool kept() const;
    bool keeps();  // whether this is that process

    // Map only what is in use from now on: the address space of this process is about to be limited.
    void shrink_mapping();

    uint64_t next_number();  // 0, 1, 2 … over all processes of the arena
    Usage usage() const;
    // Gives the pages of free blocks of whole pages back, until that is enough; returns the bytes.
    uint64_t trim(uint64_t enough = UINT64_MAX);

    static size_t class_of_size(size_t size);
    static size_t class_size(size_t c);

  private:
    struct Mapping {
        int fd;
        char* base;
        uint64_t region;
        size_t size;
        bool sparse;  // only the tables are mapped, the rest is when it is looked at
    };
    explicit Arena(Mapping mapping);
    static Mapping make(uint64_t limit);
    // Maps it as far as this process may; without a base where there is no room for it.
    static Mapping map_all(int fd, uint64_t region, size_t size);
    struct Reach;
    void be_sparse();
    [[gnu::cold]] void reach(Offset offset) const;
    bool try_to_reach(Offset offset) const;
    void reach_after_fork();
    void after_fork();

    Header& header() const { return *reinterpret_cast<Header*>(base_); }
    Slot& slot(OwnerId owner) const;
    Offset meta_start(size_t c) const;
    Offset region_start(size_t c) const;
    size_t class_of(Offset block) const;
    bool is_block(Offset offset) const;
    uint64_t committed() const;
    FreeList& list(size_t n, size_t c) const;
    uint64_t free_blocks(size_t c, bool cold) const;
    void make_room(uint64_t length);
    void take_pages(Offset start, uint64_t length);
    void grow(std::atomic<uint64_t>& committed, Offset start, uint64_t from, uint64_t to);
    Offset carve(size_t c, OwnerId me);
    bool finish_carving(size_t c);
    Offset take_first(Link& list, Word& count, OwnerId me, Kind kind);
    void put_first(Link& list, Word& count, Offset block, Meta& m);
    Offset take_free(size_t c, OwnerId me, bool cold);
    Offset take_any(size_t c, OwnerId me);
    void warm(Offset block, size_t c);
    bool give_pages_back(Offset block);
    void put_back(Offset block, bool cold);
    bool try_to_put_back(Offset block, Meta& m, size_t c, bool cold);
    void put_back_late();
    void repair(FreeList& list);
    Guard& guard_of(Offset object) const;
    struct Change;
    void attach_new(Offset block, Kind kind, Role role);
    Offset new_chunk(OwnerId owner);
    Entry* entry_for(OwnerId owner);
    Entry* own_entry();
    void drop(Handle handle, Role role, uint32_t kind, Entry& entry, Nanoseconds limit = kForever);
    void check(Handle handle, Role role) const;
    bool reap_slot(Slot& slot, OwnerId owner);
    void release_all(Slot& slot);
    void repair_structures(OwnerId dead);
    bool owns_block_of(OwnerId owner, size_t c) const;
    void free_owned_by(OwnerId dead);
    OwnerId claim(pid_t pid, uint64_t start_time);
    template <class Visit>
    void each_block(Visit visit) const;

    int fd_;
    char* base_;
    uint64_t region_;  // a power of two
    int region_bits_;
    size_t size_;
    std::atomic<bool> sparse_{false};
    Reach* reach_ = nullptr;
    std::atomic<OwnerId> self_{0};
    std::array<std::atomic<uint8_t>, kClasses> hints_{};  // the list of each class to begin with
    std::mutex late_mutex_;
    std::vector<Offset> late_;  // freed blocks for which no list could be had; this process's until then
    std::atomic<bool> is_late_{false};
};

// Whether there is a limit of addresses (RLIMIT_AS).
bool address_space_is_limited();

// The one arena of this process. A process that was forked in between is a process of its own.
Arena& arena();
bool has_arena();
void set_arena(Arena* arena);  // nullptr: the run has ended; the mapping stays, for what still points into it

}  // namespace dragon
