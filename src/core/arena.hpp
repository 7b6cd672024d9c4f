// The shared memory of a node: one sparse memfd that every process of the node maps. Places in it are named
// by their offsets.
//
// Guarantees
//  - Memory is reserved in the kernel before it is handed out: a lack of memory raises OutOfMemory, never
//    SIGBUS.
//  - Every block has an owner: a process, or nobody when the block is linked into a shared structure or is a
//    shared object. A block is marked as owned before it is unlinked and unmarked after it is linked, so that
//    reap() finds and frees whatever a process held when it was killed.
//  - Every lock names its owner. A process that finds the owner dead repairs the structure first (see
//    SharedLock). A repair, like every other operation, can be interrupted and started again.
//  - A process that is stopped at any step delays only processes that use the same object. No process waits
//    for lists of free blocks: see FreeList. Only an object's own lock is ever held during a copy or a system
//    call.
//  - Locks are taken in this order: the lock of an object's references, that of a channel or a condition,
//    that of a list.
//  - A shared object exists while a process is attached to it or a message carries it. reap() releases the
//    attachments of a dead process.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
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
    // For a reader without a lock: what it reads afterwards is not older than this value.
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

// Cold: a block that has no pages, or is about to lose or receive them.
enum class Kind : uint8_t { Free = 0, Data, Channel, Lock, Semaphore, Event, Condition, Words, Cold };
inline bool is_object(Kind kind) { return kind >= Kind::Channel && kind <= Kind::Words; }

// The description of a block. It is kept outside the block so that the pages of a freed block can be returned
// to the kernel.
struct Meta {
    Ordered<OwnerId> owner;
    Ordered<uint32_t> generation_and_kind;  // generation in the upper 24 bits
    Link next;

    uint32_t generation() const { return generation_and_kind >> 8; }
    uint32_t acquire_generation() const { return generation_and_kind.acquire() >> 8; }
    Kind kind() const { return static_cast<Kind>(generation_and_kind & 0xff); }
    // A generation is never 0, so that a block that was never made is recognized by its zeros.
    void set(uint32_t generation, Kind kind) {
        if (generation << 8 == 0) generation = 1;
        generation_and_kind = generation << 8 | static_cast<uint32_t>(kind);
    }
    // Makes the block. Returns false if it was made before.
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

// What an attachment is for. The two ends of a pipe are counted separately, so that each end is notified when
// the last attachment of the other end is released.
enum class Role : uint32_t { Plain = 0, Reader = 1, Writer = 2 };

// In the name of an object that is sent to another process, the bits above the role hold the index of the
// object's node.
inline constexpr uint32_t kNodeShift = 8;
inline Role role_of(uint32_t role_and_node) {
    return static_cast<Role>(role_and_node & ((1u << kNodeShift) - 1));
}

// The head of every shared object. The counts change under one lock (see Arena::Change) and are read without
// it, so each of them is one word: the lower half counts attached processes, the upper half messages that
// carry the object.
struct Object {
    std::atomic<uint64_t> references{0};
    std::array<std::atomic<uint64_t>, 2> ends{};  // the readers, and the writers, among `references`
    std::atomic<uint16_t> destroyed{0};
    std::atomic<uint16_t> place{0};  // where it was made: see Arena::intern()

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

// The operation for which a process waits. None: no process waits. Task is not a wait but a task that a
// worker of a pool runs.
enum class Purpose : uint8_t { None = 0, Get, Put, Read, Join, Acquire, Wait, Task };

struct WaitInfo {
    pid_t pid;
    uint64_t thread;
    Purpose purpose;
    Offset object;
    Kind kind;  // Free or Data if the object no longer exists
    const char* place;
    Nanoseconds since;
    // The processes that have a handle of the object. All that wait for the same object, who may be many,
    // share the vector.
    std::shared_ptr<const std::vector<pid_t>> attached;
};

inline constexpr uint64_t kTaskFailed = 1;  // in the number of a task

// A wait that has ended, or a task that ran or runs. `what` is the offset of the object, or the value that
// the process passed to begin_task(), with kTaskFailed for a task that failed. `end` is 0 while the task
// runs.
struct SpanInfo {
    pid_t pid;
    uint64_t thread;
    Purpose purpose;
    Kind kind;
    uint64_t what;
    Nanoseconds start, end;
};

// A queue that a user made, or the tasks of a pool.
struct QueueInfo {
    Offset offset;
    uint32_t number;
    const char* place;
    uint64_t maker;             // puid of the process that made it
    uint64_t size, taken;       // messages: in the queue now, and taken since it was made
    uint64_t bytes;             // of shared memory that the messages in the queue occupy
    uint32_t getting, putting;  // threads that wait to get, and to put
    bool pool;
    uint64_t attached, running, done;  // of a pool: handles, running tasks, results produced
};

inline constexpr size_t kClasses = 6 + 1 + 26 * 4;
inline constexpr size_t kSlots = 1 << 13;
inline constexpr size_t kSpans = 1 << 14;
inline constexpr size_t kMadeAt = 1 << 10;

struct Header;
struct Slot;
struct ClassState;
struct FreeList;
struct Guard;
struct Entry;

class Arena {
  public:
    // Makes a new arena of at most `limit` bytes.
    explicit Arena(uint64_t limit);
    // Maps the arena of a descriptor that another process made.
    static Arena* open(int fd);

    int fd() const { return fd_; }
    uint64_t id() const;

    Offset allocate(size_t size);  // owned by this process
    void free(Offset block);
    bool has_warm(size_t size) const;  // whether a block of that size is available without new pages
    size_t capacity(Offset block) const { return class_size(class_of(block)); }
    template <class T>
    T* at(Offset offset) const {
        if (sparse_.load(std::memory_order_relaxed)) [[unlikely]]
            reach(offset);
        return reinterpret_cast<T*>(base_ + offset);
    }
    Meta& meta(Offset block) const;
    Offset block_at(Offset inside) const;  // the block that contains this offset
    void give(Offset block, OwnerId to);   // makes another process, or a guest, the owner
    void adopt(Offset block);              // makes this process the owner
    void disown(Offset block);  // removes the owner of a block that is linked into a shared structure

    // Makes a shared object in a new block and attaches this process in `role`.
    template <class T, class... Args>
    Handle create(Kind kind, Role role, size_t size, Args&&... args) {
        Offset block = allocate(size);
        new (at<T>(block)) T(std::forward<Args>(args)...);
        attach_new(block, kind, role);
        return {block, meta(block).generation()};
    }
    // Attaches this process; throws ObjectDestroyed if the object no longer exists. If it `arrives`, it takes
    // the place of a message that carries the object, if there is one.
    void attach(Handle handle, Kind kind, Role role, bool arrives = true);
    void release(Handle handle, Role role, Nanoseconds limit = kForever);
    // Records that a message carries the object from now on, until a process attaches or this process ends.
    void send(Handle handle, Role role);
    // Attaches a process that is about to be forked, for which the slot `owner` was reserved.
    void attach_for(OwnerId owner, Handle handle, Role role);
    // Attach, release and send on behalf of a guest: a process of another node that has a slot here.
    void guest_attach(OwnerId guest, Handle handle, Role role);
    void guest_release(OwnerId guest, Handle handle, Role role);
    void guest_send(OwnerId guest, Handle handle, Role role);
    // Releases everything of a guest whose process has ended.
    void guest_left(OwnerId guest);
    // Makes this process act as that guest; returns the owner as which it acted before.
    OwnerId act_as(OwnerId guest) {
        OwnerId before = self();
        self_ = guest;
        return before;
    }
    bool exists(Handle handle) const;
    // Whether the offset is a block of at least `size` bytes that is in use and is not an object.
    bool is_data(Offset block, size_t size) const;

    OwnerId self();          // this process's id; claims a slot the first time
    OwnerId reserve_slot();  // for a process to be forked
    void fill_slot(OwnerId owner, pid_t pid);
    // Like fill_slot(), if the process itself will call take_slot() and record when it started.
    void promise_slot(OwnerId owner, pid_t pid);
    void take_slot(OwnerId owner);  // no effect if it is reserved for another process, an ancestor
    // Like release(), but if the lock of the object stays held, the release is retried by later calls.
    void release_when_possible(Handle handle, Role role);
    void release_late();
    // Called by a process that ends in order: releases its attachments, unless it still owns blocks. Returns
    // false if something is left to reap(). Nothing in the arena may be used afterwards.
    bool leave();
    bool alive(OwnerId owner) const;
    pid_t pid_of(OwnerId owner) const;
    // Whether the process was already reaped: cheaper than alive(), which asks the kernel.
    bool reaped(OwnerId owner) const;
    // Frees what a dead child of this process left, after it was waited for. Returns whether there was such a
    // process.
    bool reap(pid_t pid);
    int reap_dead();
    size_t processes(SlotInfo* out, size_t capacity) const;

    // Record that this thread begins or ends to wait for an object. begin_wait() returns a place for
    // end_wait(), -1 if too many threads of this process wait.
    int begin_wait(Offset object, Purpose purpose, uint64_t thread, Nanoseconds since);
    void end_wait(int place);
    // The recorded waits of all processes. Claims no slot: a process outside the run may call it.
    std::vector<WaitInfo> waits() const;
    // Returns the number of a place in a program, such as "train.py:12", of which the last 59 bytes are kept;
    // 0 if there are too many. All objects that were made at a place share its text.
    uint16_t intern(std::string_view text);
    const char* place_of(Offset object) const;  // where it was made; "" if that is unknown
    void inquire(Nanoseconds until);            // asks waiting processes to report themselves until then
    bool asked() const;
    // While tracing is on, each wait is recorded when it has ended, and so are the spans that processes note.
    void trace(bool on);
    bool tracing() const;
    // Record that this thread begins a task, or has ended one that began at `start`; if the process ends
    // first, the task has failed. The lowest bit of `which` is that of kTaskFailed.
    void begin_task(uint64_t which, uint64_t thread, Nanoseconds start);
    void end_task(uint64_t which, uint64_t thread, Nanoseconds start);
    std::vector<SpanInfo> running_tasks() const;
    void note_span(pid_t pid, uint64_t what, Purpose purpose, uint64_t thread, Nanoseconds start);
    // Returns the spans from number `next` on, and sets `next` for the following call. `lost` is set to the
    // number of spans that were overwritten or never completed.
    std::vector<SpanInfo> take_spans(uint64_t& next, uint64_t& lost) const;
    // The channel in which processes put operations for the agent; 0: there is none.
    Handle desk() const;
    void set_desk(Handle channel);
    // The number for the next queue or pool that a user makes on this node: 1, 2, 3 …
    uint32_t next_queue();
    // The channels that have such a number, among at most `most` blocks of the channels' size class from
    // index `first` on. Sets `next` to the index at which to continue, 0 after the last. Takes no lock and no
    // slot.
    std::vector<Offset> find_queues(uint64_t first, uint64_t most, uint64_t& next) const;
    // The state of those channels among `offsets` that still exist.
    std::vector<QueueInfo> queues(const std::vector<Offset>& offsets) const;

    // Sets the keeper: the process whose end is the end of the run (the agent).
    void set_keeper(OwnerId owner);
    bool kept() const;
    bool keeps();  // whether this process is the keeper

    // Maps only what is in use from now on, because the address space of this process is about to be limited.
    void shrink_mapping();

    uint64_t next_number();  // 0, 1, 2 … over all processes of the arena
    Usage usage() const;
    // Returns pages of free blocks to the kernel, for blocks of whole pages, until `enough` bytes are freed.
    // Returns the bytes freed.
    uint64_t trim(uint64_t enough = UINT64_MAX);

    static size_t class_of_size(size_t size);
    static size_t class_size(size_t c);

  private:
    struct Mapping {
        int fd;
        char* base;
        uint64_t region;
        size_t size;
        bool sparse;  // only the tables are mapped at first, other parts at their first use
    };
    explicit Arena(Mapping mapping);
    static Mapping make(uint64_t limit);
    // Maps the whole arena, or only its tables if the address space is limited. `base` is null if that fails.
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
    void fail_tasks(Slot& slot);  // those that a process was running when it ended
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
    std::array<std::atomic<uint8_t>, kClasses> hints_{};  // the list of each class that is tried first
    std::mutex late_mutex_;
    std::vector<Offset> late_;  // freed blocks that this process owns until it can lock a list for them
    std::atomic<bool> is_late_{false};
};

// Whether the address space of this process is limited (RLIMIT_AS).
bool address_space_is_limited();

// The arena of this process. A forked child claims a slot of its own in it.
Arena& arena();
bool has_arena();
// Whether it is this one. Another thread may leave the run at any time, between two other calls too.
bool is_current(const Arena* arena);
void set_arena(Arena* arena);  // nullptr: the run has ended; the mapping stays, as pointers may remain

}  // namespace dragon
