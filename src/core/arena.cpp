#include "arena.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "channel.hpp"
#include "sync.hpp"

namespace dragon {

namespace {

constexpr uint64_t kMagic = 0x31616e65'72616764;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kKeepWarm = 256 * kMiB;  // freed large blocks of one class that keep their pages
constexpr int kSlotBits = 13;
constexpr uint32_t kGenerationMask = (1u << (31 - kSlotBits)) - 1;
constexpr Offset kMetaStart = kMiB;
constexpr uint64_t kOneInFlight = uint64_t{1} << 32;  // see Object

enum SlotState : uint32_t {
    kFree,
    kLive,
    kClaiming
};  // with the claiming process's id above the lowest 2 bits
enum EntryKind : uint32_t { kAttached = 1, kInFlight = 2, kAttachedAhead = 3 };

uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

// State letter and start time of a process; false where there is none.
bool process_stat(pid_t pid, char& state, uint64_t& start_time) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char* p = strrchr(text, ')');  // the name may hold anything
    if (!p) return false;
    p += 2;
    state = *p;
    for (int field = 3; field < 22; ++field) {
        p = strchr(p, ' ');
        if (!p) return false;
        ++p;
    }
    start_time = strtoull(p, nullptr, 10);
    return true;
}

uint64_t memory_available() {
    char text[512];
    int fd = ::open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return UINT64_MAX;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return UINT64_MAX;
    text[n] = 0;
    const char* p = strstr(text, "MemAvailable:");
    return p ? strtoull(p + 13, nullptr, 10) * 1024 : UINT64_MAX;
}

}  // namespace

// One attachment of a process, in a table in the arena that reap() reads when the process is dead.
struct Entry {
    Link object;
    uint32_t generation;
    uint32_t role_and_kind;
    Role role() const { return static_cast<Role>(role_and_kind & 0xff); }
    uint32_t kind() const { return role_and_kind >> 8; }
    void set(Handle handle, Role role, uint32_t kind) {
        generation = handle.generation;
        role_and_kind = static_cast<uint32_t>(role) | kind << 8;
        object = handle.offset;
    }
};

namespace {

struct Chunk {
    static constexpr size_t kEntries = 63;
    Link next;
    uint64_t unused = 0;
    Entry entries[kEntries] = {};
};

// This process's own view of its table of attachments.
struct Attachments {
    struct Key {
        Offset object;
        uint32_t generation;
        Role role;
        uint32_t kind;
        auto operator<=>(const Key&) const = default;
    };
    std::mutex mutex;
    std::multimap<Key, Entry*> entries;
    std::vector<Entry*> free;
    size_t next_sweep = Chunk::kEntries;

    Entry* take(const Key& key) {
        auto found = entries.find(key);
        if (found == entries.end()) return nullptr;
        Entry* entry = found->second;
        entries.erase(found);
        return entry;
    }
};

Attachments* attachments = new Attachments;
Arena* current = nullptr;

}  // namespace

struct ClassState {
    SharedLock lock;
    Word free_count, cold_count;
    Link free;
    Link cold;  // free blocks whose pages were given back
    std::atomic<uint64_t> carved;
    Ordered<uint64_t> committed, committed_meta;  // up to here pages were taken
    std::atomic<uint64_t> reserved;               // bytes that count against the limit

    uint64_t blocks() const {
        uint64_t unused = uint64_t{free_count.load()} + cold_count.load();
        return std::max(carved.load(), unused) - unused;
    }
};

struct alignas(64) Slot {
    Word state, generation;
    std::atomic<pid_t> pid;
    SharedLock reaping;
    std::atomic<uint64_t> start_time;
    std::atomic<int64_t> owned;  // blocks that the process owns, or a few more
    Link attachments;
    std::atomic<Offset> waiting_on;
};

// What an object and an entry were before the change that is being made to them.
struct Undo {
    Link object;  // none: no change is being made
    uint64_t references, ends[2];
    OwnerId owner;
    uint32_t generation_and_kind;
    Offset entry, entry_object;
    uint32_t entry_generation, entry_role_and_kind;
};

struct Header {
    uint64_t magic, id, limit, region;
    std::atomic<uint64_t> number;
    Word slots_used, slot_hint, keeper;
    SharedLock objects;  // held while references to objects change
    Undo undo;
    ClassState classes[kClasses];
    Slot slots[kSlots];
};
static_assert(sizeof(Header) <= kMetaStart);

// ---- the process's arena

Arena& arena() {
    if (!current) throw ObjectDestroyed("this process belongs to no run");
    return *current;
}
bool has_arena() { return current != nullptr; }
void set_arena(Arena* a) { current = a; }

// ---- making and mapping

Arena::Mapping Arena::make(uint64_t limit) {
    int fd = memfd_create("dragon", MFD_CLOEXEC);
    if (fd < 0) throw SystemFailure(errno, "memfd_create");
    for (uint64_t region = std::bit_ceil(std::max(limit, 64 * kMiB));; region /= 2) {
        if (region < 64 * kMiB) {
            close(fd);
            throw SystemFailure(ENOMEM,
                                "the address space is limited (ulimit -v): no room for the shared memory");
        }
        size_t size = round_up(kMetaStart + kClasses * (region / 4), 2 * kMiB) + kClasses * region;
        if (ftruncate(fd, static_cast<off_t>(size)) != 0) {
            if (region > 64 * kMiB) continue;
            int error = errno;
            close(fd);
            throw SystemFailure(error, "the shared memory cannot be sized (ulimit -f)");
        }
        void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (base != MAP_FAILED) {
            madvise(base, size, MADV_DONTDUMP);
            return {fd, static_cast<char*>(base), region, size};
        }
    }
}

Arena::Arena(Mapping m) : fd_(m.fd), base_(m.base), region_(m.region), size_(m.size) {
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, [] {
            if (current) current->self_.store(0);
            attachments = new Attachments;  // the parent's may be locked
        });
    });
}

Arena::Arena(uint64_t limit) : Arena(make(limit)) {
    if (posix_fallocate(fd_, 0, round_up(sizeof(Header), kPage)) != 0)
        throw OutOfMemory("no memory for the arena's own tables (" + std::to_string(sizeof(Header)) +
                          " bytes)");
    Header& h = header();
    h.limit = std::min(limit, region_);
    h.region = region_;
    if (getrandom(&h.id, sizeof h.id, 0) != sizeof h.id) throw SystemFailure(errno, "getrandom");
    h.magic = kMagic;
}

Arena* Arena::open(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0) throw SystemFailure(errno, "fstat");
    auto size = static_cast<size_t>(st.st_size);
    if (size < kMetaStart) throw SystemFailure(EINVAL, "not an arena");
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) throw SystemFailure(errno, "mmap of the arena");
    auto* h = static_cast<Header*>(base);
    if (h->magic != kMagic) {
        munmap(base, size);
        throw SystemFailure(EINVAL, "not an arena");
    }
    madvise(base, size, MADV_DONTDUMP);
    return new Arena(Mapping{fd, static_cast<char*>(base), h->region, size});
}

uint64_t Arena::id() const { return header().id; }
void Arena::set_keeper(OwnerId owner) { header().keeper = owner; }
bool Arena::kept() const {
    OwnerId keeper = header().keeper.load();
    return keeper == 0 || alive(keeper);
}
uint64_t Arena::next_number() { return header().number.fetch_add(1); }

uint64_t Arena::committed() const {
    uint64_t total = round_up(sizeof(Header), kPage);
    for (const ClassState& s : header().classes) total += s.reserved.load(std::memory_order_relaxed);
    return total;
}

Usage Arena::usage() const {
    Usage u{header().limit, committed(), 0, 0};
    for (size_t c = 0; c < kClasses; ++c) {
        uint64_t blocks = header().classes[c].blocks();
        u.blocks += blocks;
        u.in_use += blocks * class_size(c);
    }
    return u;
}

// ---- size classes: powers of two up to 4 KiB, four steps to the doubling above

size_t Arena::class_of_size(size_t size) {
    if (size <= 64) return 0;
    if (size <= 4096) return static_cast<size_t>(std::bit_width(size - 1)) - 6;
    size_t exponent = static_cast<size_t>(std::bit_width(size - 1)) - 1;
    size_t base = size_t{1} << exponent, step = base / 4;
    return 6 + (exponent - 12) * 4 + (size - base + step - 1) / step;
}

size_t Arena::class_size(size_t c) {
    if (c <= 6) return size_t{64} << c;
    size_t base = size_t{4096} << ((c - 7) / 4);
    return base + base / 4 * ((c - 7) % 4 + 1);
}

Offset Arena::region_start(size_t c) const {
    return round_up(kMetaStart + kClasses * (region_ / 4), 2 * kMiB) + c * region_;
}
size_t Arena::class_of(Offset block) const { return (block - region_start(0)) / region_; }

Meta& Arena::meta(Offset block) const {
    size_t c = class_of(block);
    uint64_t index = (block - region_start(c)) / class_size(c);
    return *reinterpret_cast<Meta*>(base_ + kMetaStart + c * (region_ / 4) + index * sizeof(Meta));
}

template <class Visit>
void Arena::each_block(Visit visit) const {
    for (size_t c = 0; c < kClasses; ++c) {
        uint64_t carved = header().classes[c].carved.load(), size = class_size(c);
        Meta* m = at<Meta>(kMetaStart + c * (region_ / 4));
        for (Offset block = region_start(c), end = block + carved * size; block < end; block += size)
            visit(block, *m++);
    }
}

// ---- allocation

// Takes pages. The class is locked.
void Arena::commit(ClassState& s, Offset start, uint64_t length) {
    Header& h = header();
    auto fail = [&](const char* what, uint64_t left) {
        s.reserved.fetch_sub(length);
        throw OutOfMemory("asked for " + std::to_string(length) + " bytes of shared memory; " + what + " " +
                          std::to_string(left) + " bytes (" + std::to_string(committed()) + " in use of " +
                          std::to_string(h.limit) + "); DRAGON_ARENA_SIZE sets the limit");
    };
    s.reserved.fetch_add(length);
    if (committed() > h.limit) {
        trim();
        uint64_t total = committed();
        if (total > h.limit) fail("the run's limit leaves", h.limit - std::min(h.limit, total - length));
    }
    if (length >= kMiB) {
        uint64_t available = memory_available();
        if (length > available) fail("this machine has left", available);
    }
    int error;
    while ((error = posix_fallocate(fd_, static_cast<off_t>(start), static_cast<off_t>(length))) == EINTR);
    if (error) fail("the system gives no more, it has left", memory_available());
}

// Makes block `index` of a class usable: its pages and those of its Meta. The class is locked.
void Arena::carve(size_t c, uint64_t index) {
    ClassState& s = header().classes[c];
    uint64_t end = (index + 1) * class_size(c), meta_end = (index + 1) * sizeof(Meta);
    if (end > region_)
        throw OutOfMemory("no address space left for blocks of " + std::to_string(class_size(c)) + " bytes");
    if (meta_end > s.committed_meta) {
        commit(s, kMetaStart + c * (region_ / 4) + s.committed_meta, kPage);
        s.committed_meta = s.committed_meta + kPage;
    }
    if (end > s.committed) {
        uint64_t step = std::clamp<uint64_t>(s.committed, 64 * 1024, kMiB);
        uint64_t target = std::min(round_up(std::max(end, s.committed + step), kPage), region_);
        // No more than is needed for large blocks, and near the limit.
        if (class_size(c) >= kMiB / 2 || committed() + (target - s.committed) > header().limit)
            target = round_up(end, kPage);
        commit(s, region_start(c) + s.committed, target - s.committed);
        s.committed = target;
    }
}

void Arena::lock_class(size_t c) {
    if (header().classes[c].lock.hold(self())) repair_class(c);
}

// Whatever the dead process was doing: what is linked is free.
void Arena::repair_class(size_t c) {
    ClassState& s = header().classes[c];
    uint32_t counts[2] = {0, 0};
    for (size_t i : {0, 1})
        for (Offset b = i ? s.cold : s.free; b; b = meta(b).next) {
            Meta& m = meta(b);
            if (m.kind() != Kind::Free) m.set(m.generation() + 1, Kind::Free);
            m.owner = 0;
            ++counts[i];
        }
    s.free_count = counts[0];
    s.cold_count = counts[1];
    s.reserved = s.committed + s.committed_meta - counts[1] * class_size(c);
}

// Unlinks the first block of a list of free ones. The class is locked.
Offset Arena::take_first(Link& list, Word& count, OwnerId me) {
    Offset block = list;
    Meta& m = meta(block);
    slot(me).owned.fetch_add(1, std::memory_order_relaxed);
    m.owner = me;
    m.set(m.generation(), Kind::Data);
    list = m.next;
    count.store(count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    return block;
}

void Arena::put_first(Link& list, Word& count, Offset block) {
    Meta& m = meta(block);
    OwnerId owner = m.owner;
    m.next = list;
    list = block;
    m.set(m.generation() + 1, Kind::Free);
    m.owner = 0;
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (owner) slot(owner).owned.fetch_sub(1, std::memory_order_relaxed);
}

Offset Arena::allocate(size_t size) {
    OwnerId me = self();
    Header& h = header();
    size_t c = class_of_size(size);
    if (c >= kClasses || class_size(c) > h.limit)
        throw OutOfMemory("asked for " + std::to_string(size) +
                          " bytes of shared memory; the run's limit is " + std::to_string(h.limit) +
                          "; DRAGON_ARENA_SIZE sets it");
    ClassState& s = h.classes[c];
    lock_class(c);
    Offset block;
    try {
        if (s.free) {
            block = take_first(s.free, s.free_count, me);
        } else if (s.cold) {
            commit(s, s.cold, class_size(c));
            block = take_first(s.cold, s.cold_count, me);
        } else {
            uint64_t index = s.carved.load();
            carve(c, index);
            block = region_start(c) + index * class_size(c);
            slot(me).owned.fetch_add(1);
            meta(block).owner = me;
            meta(block).set(meta(block).generation(), Kind::Data);
            s.carved.store(index + 1);
        }
    } catch (...) {
        s.lock.unlock();
        throw;
    }
    s.lock.unlock();
    return block;
}

void Arena::free(Offset block) {
    size_t c = class_of(block);
    ClassState& s = header().classes[c];
    size_t size = class_size(c);
    lock_class(c);
    put_first(s.free, s.free_count, block);
    if (size >= kMiB && s.free_count.load() * size > kKeepWarm) give_pages_back(s.free, size);
    s.lock.unlock();
}

// The first free block of a class becomes a cold one. It is linked as such before its pages go, so that no
// block without pages is ever taken for a warm one. The class is locked.
bool Arena::give_pages_back(Offset block, size_t size) {
    ClassState& s = header().classes[class_of(block)];
    OwnerId me = self();
    put_first(s.cold, s.cold_count, take_first(s.free, s.free_count, me));
    if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(block),
                  static_cast<off_t>(size)) != 0) {
        put_first(s.free, s.free_count, take_first(s.cold, s.cold_count, me));  // it keeps its pages
        return false;
    }
    s.reserved.fetch_sub(size);
    return true;
}

bool Arena::has_warm(size_t size) const {
    size_t c = class_of_size(size);
    return c < kClasses && header().classes[c].free_count.load(std::memory_order_relaxed) > 0;
}

void Arena::adopt(Offset block) {
    OwnerId me = self();
    slot(me).owned.fetch_add(1, std::memory_order_relaxed);
    meta(block).owner = me;
}

void Arena::disown(Offset block) {
    Meta& m = meta(block);
    OwnerId owner = m.owner;
    if (!owner) return;
    m.owner = 0;
    slot(owner).owned.fetch_sub(1, std::memory_order_relaxed);
}

uint64_t Arena::trim() {
    uint64_t freed = 0;
    for (size_t c = class_of_size(kMiB); c < kClasses; ++c) {
        ClassState& s = header().classes[c];
        if (!s.free || !s.lock.try_lock(self())) continue;
        while (s.free && give_pages_back(s.free, class_size(c))) freed += class_size(c);
        s.lock.unlock();
    }
    return freed;
}

// ---- processes

Slot& Arena::slot(OwnerId owner) const { return header().slots[owner & (kSlots - 1)]; }

OwnerId Arena::claim(pid_t pid, uint64_t start_time) {
    Header& h = header();
    uint32_t start = h.slot_hint.load();
    for (uint32_t i = 0; i < kSlots; ++i) {
        uint32_t index = (start + i) % kSlots;
        Slot& s = h.slots[index];
        uint32_t free = kFree;
        if (!s.state.compare_exchange_strong(free, kClaiming | static_cast<uint32_t>(getpid()) << 2))
            continue;
        h.slot_hint.store(index + 1);
        uint32_t used = h.slots_used.load();
        while (used <= index && !h.slots_used.compare_exchange_weak(used, index + 1));
        uint32_t generation = std::max(1u, (s.generation.load() + 1) & kGenerationMask);
        s.generation = generation;
        s.pid = pid;
        s.start_time = start_time;
        s.owned = 0;
        s.attachments = 0;
        s.waiting_on = 0;
        s.state = kLive;
        return generation << kSlotBits | index;
    }
    throw OutOfMemory("more than " + std::to_string(kSlots) + " processes use this node's shared memory");
}

OwnerId Arena::self() {
    OwnerId id = self_.load(std::memory_order_relaxed);
    if (id) [[likely]]
        return id;
    char state;
    uint64_t start_time;
    if (!process_stat(getpid(), state, start_time)) throw SystemFailure(ENOENT, "/proc is not mounted");
    OwnerId claimed = claim(getpid(), start_time);
    if (self_.compare_exchange_strong(id, claimed)) return claimed;
    slot(claimed).state = kFree;  // another thread came first
    return id;
}

OwnerId Arena::reserve_slot() { return claim(0, 0); }

void Arena::fill_slot(OwnerId owner, pid_t pid) {
    char state;
    uint64_t start_time = 0;
    process_stat(pid, state, start_time);
    slot(owner).start_time = start_time;
    slot(owner).pid = pid;
}

void Arena::promise_slot(OwnerId owner, pid_t pid) {
    pid_t none = 0;
    slot(owner).pid.compare_exchange_strong(none, pid);
}

void Arena::take_slot(OwnerId owner) {
    Slot& s = slot(owner);
    fill_slot(owner, getpid());
    std::lock_guard lock(attachments->mutex);
    for (Offset c = s.attachments; c; c = at<Chunk>(c)->next)
        for (Entry& e : at<Chunk>(c)->entries) {
            if (e.object)
                attachments->entries.emplace(Attachments::Key{e.object, e.generation, e.role(), e.kind()},
                                             &e);
            else
                attachments->free.push_back(&e);
        }
    self_ = owner;
}

bool Arena::reaped(OwnerId owner) const {
    const Slot& s = slot(owner);
    return s.generation.load() != owner >> kSlotBits || s.state.load() != kLive;
}

bool Arena::alive(OwnerId owner) const {
    if (reaped(owner)) return false;
    const Slot& s = slot(owner);
    pid_t pid = s.pid.load();
    if (pid == 0) return true;  // about to be forked
    char state;
    uint64_t start_time;
    if (!process_stat(pid, state, start_time)) return false;
    uint64_t expected = s.start_time.load();
    return state != 'Z' && state != 'X' && (expected == 0 || expected == start_time);
}

pid_t Arena::pid_of(OwnerId owner) const {
    const Slot& s = slot(owner);
    return s.generation.load() == owner >> kSlotBits ? s.pid.load() : 0;
}

void Arena::set_waiting(Offset object) { slot(self()).waiting_on.store(object, std::memory_order_relaxed); }

size_t Arena::processes(SlotInfo* out, size_t capacity) const {
    size_t n = 0;
    for (uint32_t i = 0; i < header().slots_used.load() && n < capacity; ++i) {
        Slot& s = header().slots[i];
        if (s.state.load() == kLive)
            out[n++] = {s.generation.load() << kSlotBits | i, s.pid.load(),
                        static_cast<uint64_t>(s.owned.load()), s.waiting_on.load()};
    }
    return n;
}

bool Arena::reap(pid_t pid) {
    bool found = false;
    if (pid <= 0) return false;
    for (uint32_t i = 0; i < header().slots_used.load(); ++i) {
        Slot& s = header().slots[i];
        if (s.pid.load() != pid || s.state.load() != kLive) continue;
        OwnerId owner = s.generation.load() << kSlotBits | i;
        // One that never told its start time was promised the slot and died before it took it; by now its
        // process id may be another's.
        if (s.start_time.load() == 0 || !alive(owner)) found |= reap_slot(s, owner);
    }
    return found;
}

int Arena::reap_dead() {
    int count = 0;
    for (uint32_t i = 0; i < header().slots_used.load(); ++i) {
        Slot& s = header().slots[i];
        OwnerId owner = s.generation.load() << kSlotBits | i;
        uint32_t state = s.state.load(), claimant_state = state & 3;
        if (claimant_state == kClaiming) {
            char letter = 'X';
            uint64_t start_time;
            if (!process_stat(static_cast<pid_t>(state >> 2), letter, start_time) || letter == 'Z')
                s.state.compare_exchange_strong(state, kFree);
        } else if (state == kLive && !alive(owner)) {
            count += reap_slot(s, owner);
        }
    }
    return count;
}

// Every step can be done again, by whoever goes on where a process was killed that reaped another.
bool Arena::reap_slot(Slot& s, OwnerId owner) {
    struct Reaping {
        SharedLock& lock;
        ~Reaping() { lock.unlock(); }
    };
    s.reaping.hold(self());
    Reaping reaping{s.reaping};
    if (reaped(owner)) return false;
    // Blocks are freed by owner, so first everything reachable from a structure must be marked as its
    // structure's.
    repair_structures(owner);
    release_all(s);
    if (s.owned.load() != 0) free_owned_by(owner);
    s.state = kFree;
    return true;
}

bool Arena::leave() {
    OwnerId owner = self_.load();
    if (!owner) return true;
    Slot& s = slot(owner);
    std::lock_guard lock(attachments->mutex);
    int64_t chunks = 0;
    for (Offset c = s.attachments; c; c = at<Chunk>(c)->next) ++chunks;
    if (s.owned.load() != chunks) return false;
    release_all(s);
    attachments->entries.clear();
    attachments->free.clear();
    self_ = 0;
    s.state = kFree;
    return true;
}

// Whoever holds the lock may be repairing what the dead process left, so that is waited for.
template <class Repair>
void Arena::settle(SharedLock& lock, OwnerId dead, Repair repair) {
    if (lock.owner() == 0) return;
    if (lock.take_from_dead(dead, self()) || lock.hold(self())) repair();
    lock.unlock();
}

// ---- shared objects

// A change of an object's references together with the entry that records it. A process that is killed in
// between leaves it undone.
struct Arena::Change {
    Arena& a;
    Undo& undo;
    explicit Change(Arena& arena) : a(arena), undo(arena.header().undo) {
        if (a.header().objects.hold(a.self())) roll_back();
    }
    Change(const Change&) = delete;
    ~Change() { a.header().objects.unlock(); }

    void begin(Offset object, Entry* entry) {
        const Object& o = *a.at<Object>(object);
        const Meta& m = a.meta(object);
        undo.references = o.references.load();
        for (size_t i : {0, 1}) undo.ends[i] = o.ends[i].load();
        undo.owner = m.owner;
        undo.generation_and_kind = m.generation_and_kind;
        undo.entry = entry ? static_cast<Offset>(reinterpret_cast<char*>(entry) - a.base_) : 0;
        if (entry) {
            undo.entry_object = entry->object;
            undo.entry_generation = entry->generation;
            undo.entry_role_and_kind = entry->role_and_kind;
        }
        undo.object = object;
    }
    void commit() { undo.object = 0; }
    void roll_back() {
        if (!undo.object) return;
        Object& o = *a.at<Object>(undo.object);
        Meta& m = a.meta(undo.object);
        o.references = undo.references;
        for (size_t i : {0, 1}) o.ends[i] = undo.ends[i];
        m.owner = undo.owner;
        m.generation_and_kind = undo.generation_and_kind;
        if (undo.entry) {
            Entry& entry = *a.at<Entry>(undo.entry);
            entry.generation = undo.entry_generation;
            entry.role_and_kind = undo.entry_role_and_kind;
            entry.object = undo.entry_object;
        }
        undo.object = 0;
    }
};

// More room in a process's table.
Offset Arena::new_chunk(OwnerId owner) {
    Slot& s = slot(owner);
    Offset block = allocate(sizeof(Chunk));
    auto* chunk = new (at<Chunk>(block)) Chunk;
    chunk->next = s.attachments;
    if (owner != self()) {
        s.owned.fetch_add(1);
        meta(block).owner = owner;
        slot(self()).owned.fetch_sub(1);
    }
    s.attachments = block;
    return block;
}

// A free entry in the table of a process that does not run yet.
Entry* Arena::entry_for(OwnerId owner) {
    for (Offset c = slot(owner).attachments; c; c = at<Chunk>(c)->next)
        for (Entry& e : at<Chunk>(c)->entries)
            if (!e.object) return &e;
    return at<Chunk>(new_chunk(owner))->entries;
}

// A free entry in the table of this process. The attachments are locked.
Entry* Arena::own_entry() {
    Attachments& t = *attachments;
    if (t.free.empty() && t.entries.size() >= t.next_sweep) {
        // What was sent and has arrived, or is gone.
        std::erase_if(t.entries, [&](auto& item) {
            auto& [key, entry] = item;
            Handle handle{key.object, key.generation};
            if (key.kind != kInFlight || (exists(handle) && at<Object>(key.object)->in_flight(key.role)))
                return false;
            entry->object = 0;
            t.free.push_back(entry);
            return true;
        });
        t.next_sweep = std::max(Chunk::kEntries, 2 * t.entries.size());
    }
    if (t.free.empty())
        for (Entry& entry : at<Chunk>(new_chunk(self()))->entries) t.free.push_back(&entry);
    Entry* entry = t.free.back();
    t.free.pop_back();
    return entry;
}

void Arena::attach_new(Offset block, Kind kind, Role role) {
    std::lock_guard lock(attachments->mutex);
    Entry* entry;
    try {
        entry = own_entry();
    } catch (...) {
        free(block);
        throw;
    }
    Meta& m = meta(block);
    Handle handle{block, m.generation()};
    {
        Change change(*this);
        change.begin(block, entry);
        at<Object>(block)->count(role, 1);
        entry->set(handle, role, kAttached);
        m.set(handle.generation, kind);
        m.owner = 0;  // it belongs to whoever is attached
        change.commit();
    }
    slot(self()).owned.fetch_sub(1);
    attachments->entries.emplace(Attachments::Key{block, handle.generation, role, kAttached}, entry);
}

bool Arena::exists(Handle handle) const {
    if (handle.offset < region_start(0) || handle.offset >= size_) return false;
    size_t c = class_of(handle.offset);
    Offset within = handle.offset - region_start(c);
    if (within % class_size(c) || within / class_size(c) >= header().classes[c].carved.load()) return false;
    const Meta& m = meta(handle.offset);
    return m.generation() == handle.generation && m.kind() != Kind::Free && m.kind() != Kind::Data &&
           at<Object>(handle.offset)->references.load() != 0;
}

void Arena::attach(Handle handle, Kind kind, Role role) {
    std::lock_guard lock(attachments->mutex);
    auto check = [&] {
        if (!exists(handle) || meta(handle.offset).kind() != kind)
            throw ObjectDestroyed(
                "the object is gone: nobody was attached to it any more, or it was destroyed");
    };
    check();
    Attachments::Key key{handle.offset, handle.generation, role, kAttached};
    if (Entry* entry = attachments->take({handle.offset, handle.generation, role, kAttachedAhead})) {
        entry->set(handle, role, kAttached);
        attachments->entries.emplace(key, entry);
        return;
    }
    Entry* entry = own_entry();
    try {
        Change change(*this);
        check();
        Object& o = *at<Object>(handle.offset);
        change.begin(handle.offset, entry);
        // In one step: a pipe's end is never seen to be gone in between.
        o.count(role, o.in_flight(role) ? 1 - kOneInFlight : 1);
        entry->set(handle, role, kAttached);
        change.commit();
    } catch (...) {
        attachments->free.push_back(entry);
        throw;
    }
    attachments->entries.emplace(key, entry);
}

void Arena::attach_for(OwnerId owner, Handle handle, Role role) {
    Change change(*this);
    if (!exists(handle)) throw ObjectDestroyed("an object that the new process was given is gone");
    Entry* entry = entry_for(owner);
    change.begin(handle.offset, entry);
    at<Object>(handle.offset)->count(role, 1);
    entry->set(handle, role, kAttachedAhead);
    change.commit();
}

void Arena::send(Handle handle, Role role) {
    std::lock_guard lock(attachments->mutex);
    Attachments::Key key{handle.offset, handle.generation, role, kInFlight};
    Object& o = *at<Object>(handle.offset);
    // Entries of messages that have arrived serve again.
    bool recorded = attachments->entries.count(key) > o.in_flight(role);
    Entry* entry = recorded ? nullptr : own_entry();
    Change change(*this);
    change.begin(handle.offset, entry);
    o.count(role, kOneInFlight);
    if (entry) entry->set(handle, role, kInFlight);
    change.commit();
    if (entry) attachments->entries.emplace(key, entry);
}

void Arena::release(Handle handle, Role role) {
    Entry* entry;
    {
        std::lock_guard lock(attachments->mutex);
        entry = attachments->take({handle.offset, handle.generation, role, kAttached});
    }
    if (!entry) return;  // a forked child's copy of its parent's handle
    drop(handle, role, kAttached, *entry);
    std::lock_guard lock(attachments->mutex);
    attachments->free.push_back(entry);
}

void Arena::drop(Handle handle, Role role, uint32_t kind, Entry& entry) {
    bool last = false;
    {
        Change change(*this);
        Object& o = *at<Object>(handle.offset);
        if (kind == kInFlight && (!exists(handle) || o.in_flight(role) == 0)) {  // it arrived
            entry.object = 0;
            return;
        }
        uint64_t one = kind == kInFlight ? kOneInFlight : 1;
        last = o.references.load() == one;
        bool end_goes = !last && role != Role::Plain && o.end(role).load() == one;
        // Before the end is gone: whoever is killed here did not do it, and who does it in its place rings
        // again.
        if (end_goes && role == Role::Writer) at<Channel>(handle.offset)->ring_end(*this);
        change.begin(handle.offset, &entry);
        o.count(role, -one);
        if (last) adopt(handle.offset);  // found by reap() if this process is killed before it is freed
        entry.object = 0;
        change.commit();
        if (end_goes) at<Channel>(handle.offset)->end_went();
    }
    if (!last) return;
    if (meta(handle.offset).kind() == Kind::Channel) at<Channel>(handle.offset)->tear_down(*this);
    free(handle.offset);
}

void Arena::release_all(Slot& s) {
    while (Offset c = s.attachments) {
        auto* chunk = at<Chunk>(c);
        for (Entry& e : chunk->entries)
            if (e.object) drop({e.object, e.generation}, e.role(), e.kind(), e);
        s.attachments = chunk->next;
        free(c);
    }
}

void Arena::repair_structures(OwnerId dead) {
    {
        Change change(*this);
    }  // who takes that lock undoes what the dead process had begun
    for (size_t c = 0; c < kClasses; ++c) settle(header().classes[c].lock, dead, [&] { repair_class(c); });
    for (size_t c : {class_of_size(sizeof(Channel)), class_of_size(sizeof(Condition))}) {
        uint64_t carved = header().classes[c].carved.load();
        for (uint64_t i = 0; i < carved; ++i) {
            Offset block = region_start(c) + i * class_size(c);
            Kind kind = meta(block).kind();
            if (kind != Kind::Condition && !(kind == Kind::Channel && at<Channel>(block)->is_locked()))
                continue;
            Change change(*this);  // while that lock is held no object goes
            if (meta(block).owner != 0) continue;
            if (meta(block).kind() == Kind::Channel) at<Channel>(block)->recover(*this, dead);
            if (meta(block).kind() == Kind::Condition) at<Condition>(block)->recover(*this, dead);
        }
    }
}

void Arena::free_owned_by(OwnerId dead) {
    std::vector<Offset> left;
    each_block([&](Offset block, Meta& m) {
        if (m.owner == dead && m.kind() != Kind::Free) left.push_back(block);
    });
    // Channels first: what hangs on them is freed with them.
    for (Offset block : left)
        if (meta(block).kind() == Kind::Channel) at<Channel>(block)->tear_down(*this);
    for (Offset block : left)
        if (meta(block).owner == dead) free(block);
}

// ---- locks

Status SharedLock::lock_slowly(OwnerId self, Nanoseconds deadline) {
    for (int i = 0; i < 400; ++i)
        if (word_.load(std::memory_order_relaxed) == 0 && try_lock(self)) return Status::Ok;
    Nanoseconds slice = 20'000'000;
    for (;;) {
        uint32_t seen = word_.load();
        if (seen == 0) {
            if (word_.compare_exchange_strong(seen, self | kContended)) return Status::Ok;
            continue;
        }
        if (!(seen & kContended) && !word_.compare_exchange_strong(seen, seen | kContended)) continue;
        seen |= kContended;
        Nanoseconds start = now();
        if (start >= deadline) {
            bool dead = !arena().alive(seen & ~kContended);
            return dead && word_.compare_exchange_strong(seen, self | kContended) ? Status::Recovered
                                                                                  : Status::Timeout;
        }
        Status status = futex_wait(word_, seen, deadline, slice);
        if (status == Status::Interrupted) return status;
        if (now() - start >= slice && word_.load() == seen) {
            if (!arena().alive(seen & ~kContended) && word_.compare_exchange_strong(seen, self | kContended))
                return Status::Recovered;
            slice = std::min<Nanoseconds>(slice * 2, 500'000'000);
        }
    }
}

Status SharedLock::try_to_lock(OwnerId self) {
    if (try_lock(self)) return Status::Ok;
    OwnerId holder = owner();
    return holder && arena().reaped(holder) && take_from_dead(holder, self) ? Status::Recovered
                                                                            : Status::Timeout;
}

bool SharedLock::take_from_dead(OwnerId dead, OwnerId self) {
    uint32_t seen = word_.load();
    return (seen & ~kContended) == dead && word_.compare_exchange_strong(seen, self | (seen & kContended));
}

}  // namespace dragon
