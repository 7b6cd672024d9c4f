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
#include <mutex>
#include <new>
#include <unordered_map>
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

enum SlotState : uint32_t { kFree, kClaiming, kLive, kReaping };
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

// One attachment of a process, in a table in the arena that reap() reads when the process is dead.
struct Entry {
    Offset object;
    uint32_t generation;
    uint32_t role_and_kind;
    Role role() const { return static_cast<Role>(role_and_kind & 0xff); }
    uint32_t kind() const { return role_and_kind >> 8; }
};

struct Chunk {
    static constexpr size_t kEntries = 63;
    Offset next;
    uint64_t unused;
    Entry entries[kEntries];
};

// This process's own view of its table of attachments.
struct Attachments {
    std::mutex mutex;
    std::unordered_multimap<uint64_t, Entry*> entries;  // by object, role and kind
    std::vector<Entry*> free;

    static uint64_t key(Offset object, Role role, uint32_t kind) {
        return object << 4 | static_cast<uint64_t>(role) << 2 | kind;
    }
    Entry* take(Offset object, Role role, uint32_t kind) {
        auto found = entries.find(key(object, role, kind));
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
    Word free_count;
    Offset free;
    Offset cold;  // free blocks whose pages were given back
    std::atomic<uint64_t> carved;
    uint64_t committed, committed_meta;
};

struct alignas(64) Slot {
    Word state, generation;
    std::atomic<pid_t> pid;
    uint64_t start_time;
    std::atomic<int64_t> owned;
    Offset attachments;
    std::atomic<Offset> waiting_on;
};

struct Header {
    uint64_t magic, id, limit, region;
    std::atomic<uint64_t> committed, in_use, blocks, number;
    Word slots_used, slot_hint, keeper;
    SharedLock objects;  // held while an object is attached to or found to be unused
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
            throw SystemFailure(ENOMEM, "the address space is limited (ulimit -v): no room for the shared memory");
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
        throw OutOfMemory("no memory for the arena's own tables (" + std::to_string(sizeof(Header)) + " bytes)");
    Header& h = header();
    h.limit = std::min(limit, region_);
    h.region = region_;
    if (getrandom(&h.id, sizeof h.id, 0) != sizeof h.id) throw SystemFailure(errno, "getrandom");
    h.committed = round_up(sizeof(Header), kPage);
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

Usage Arena::usage() const {
    Header& h = header();
    return {h.limit, h.committed.load(), h.in_use.load(), h.blocks.load()};
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
        uint64_t carved = header().classes[c].carved.load();
        for (uint64_t i = 0; i < carved; ++i) {
            Offset block = region_start(c) + i * class_size(c);
            visit(block, meta(block));
        }
    }
}

// ---- allocation

void Arena::commit(Offset start, uint64_t length) {
    if (length == 0) return;
    Header& h = header();
    auto fail = [&](const char* what, uint64_t left) {
        h.committed.fetch_sub(length);
        throw OutOfMemory("asked for " + std::to_string(length) + " bytes of shared memory; " + what + " " +
                          std::to_string(left) + " bytes left (" + std::to_string(h.committed.load()) + " in use of " +
                          std::to_string(h.limit) + "); DRAGON_ARENA_SIZE sets the limit");
    };
    if (h.committed.fetch_add(length) + length > h.limit) {
        trim();
        uint64_t total = h.committed.load();
        if (total > h.limit) fail("the run's limit leaves", h.limit - std::min(h.limit, total - length));
    }
    if (length >= kMiB) {
        uint64_t available = memory_available();
        if (length > available) fail("this machine has", available);
    }
    int error;
    while ((error = posix_fallocate(fd_, static_cast<off_t>(start), static_cast<off_t>(length))) == EINTR);
    if (error) fail("the system gives no more, it has", memory_available());
}

// Makes block `index` of a class usable: its pages and those of its Meta. The class is locked.
void Arena::carve(size_t c, uint64_t index) {
    ClassState& s = header().classes[c];
    uint64_t end = (index + 1) * class_size(c), meta_end = (index + 1) * sizeof(Meta);
    if (end > region_) throw OutOfMemory("no address space left for blocks of " + std::to_string(class_size(c)) + " bytes");
    if (meta_end > s.committed_meta) {
        commit(kMetaStart + c * (region_ / 4) + s.committed_meta, kPage);
        s.committed_meta += kPage;
    }
    if (end > s.committed) {
        uint64_t step = std::clamp<uint64_t>(s.committed, 64 * 1024, kMiB);
        uint64_t target = std::min(round_up(std::max(end, s.committed + step), kPage), region_);
        if (class_size(c) >= kMiB / 2) target = round_up(end, kPage);
        commit(region_start(c) + s.committed, target - s.committed);
        s.committed = target;
    }
}

void Arena::lock_class(size_t c) {
    if (header().classes[c].lock.hold(self())) repair_class(c);
}

// Whatever the dead process was doing: what is linked is free.
void Arena::repair_class(size_t c) {
    ClassState& s = header().classes[c];
    uint32_t count = 0;
    for (Offset list : {s.free, s.cold})
        for (Offset b = list; b; b = meta(b).next) {
            meta(b).owner = 0;
            meta(b).set(meta(b).generation(), Kind::Free);
            count += list == s.free;
        }
    s.free_count = count;
}

Offset Arena::allocate(size_t size, Kind kind) {
    OwnerId me = self();
    Header& h = header();
    size_t c = class_of_size(size);
    if (c >= kClasses || class_size(c) > h.limit)
        throw OutOfMemory("asked for " + std::to_string(size) + " bytes of shared memory; the run's limit is " +
                          std::to_string(h.limit) + "; DRAGON_ARENA_SIZE sets it");
    ClassState& s = h.classes[c];
    Slot& own = slot(me);
    lock_class(c);
    Offset block;
    try {
        if (s.free) {
            block = s.free;
            meta(block).owner.store(me, std::memory_order_relaxed);
            own.owned.fetch_add(1, std::memory_order_relaxed);
            s.free = meta(block).next;
            s.free_count.fetch_sub(1, std::memory_order_relaxed);
        } else if (s.cold) {
            block = s.cold;
            commit(block, class_size(c));
            meta(block).owner = me;
            own.owned.fetch_add(1);
            s.cold = meta(block).next;
        } else {
            uint64_t index = s.carved.load();
            carve(c, index);
            block = region_start(c) + index * class_size(c);
            meta(block).owner = me;
            own.owned.fetch_add(1);
            s.carved.store(index + 1);
        }
        meta(block).set(meta(block).generation(), kind);
    } catch (...) {
        s.lock.unlock();
        throw;
    }
    s.lock.unlock();
    h.in_use.fetch_add(class_size(c), std::memory_order_relaxed);
    h.blocks.fetch_add(1, std::memory_order_relaxed);
    return block;
}

void Arena::free(Offset block) {
    size_t c = class_of(block);
    ClassState& s = header().classes[c];
    size_t size = class_size(c);
    lock_class(c);
    Meta& m = meta(block);
    OwnerId owner = m.owner.load(std::memory_order_relaxed);
    m.set(m.generation() + 1, Kind::Free);
    if (size >= kMiB && s.free_count.load() * size >= kKeepWarm &&
        fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(block), static_cast<off_t>(size)) == 0) {
        m.next = s.cold;
        s.cold = block;
        header().committed.fetch_sub(size);
    } else {
        m.next = s.free;
        s.free = block;
        s.free_count.fetch_add(1, std::memory_order_relaxed);
    }
    m.owner.store(0, std::memory_order_relaxed);
    s.lock.unlock();
    if (owner) slot(owner).owned.fetch_sub(1, std::memory_order_relaxed);
    header().in_use.fetch_sub(size, std::memory_order_relaxed);
    header().blocks.fetch_sub(1, std::memory_order_relaxed);
}

bool Arena::has_warm(size_t size) const {
    size_t c = class_of_size(size);
    return c < kClasses && header().classes[c].free_count.load(std::memory_order_relaxed) > 0;
}

void Arena::adopt(Offset block) {
    slot(self()).owned.fetch_add(1, std::memory_order_relaxed);
    meta(block).owner.store(self(), std::memory_order_relaxed);
}

void Arena::disown(Offset block) {
    OwnerId owner = meta(block).owner.exchange(0, std::memory_order_relaxed);
    if (owner) slot(owner).owned.fetch_sub(1, std::memory_order_relaxed);
}

uint64_t Arena::trim() {
    uint64_t freed = 0;
    for (size_t c = class_of_size(kMiB); c < kClasses; ++c) {
        ClassState& s = header().classes[c];
        if (!s.free || !s.lock.try_lock(self())) continue;
        while (Offset block = s.free) {
            if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(block),
                          static_cast<off_t>(class_size(c))) != 0)
                break;
            s.free = meta(block).next;
            meta(block).next = s.cold;
            s.cold = block;
            s.free_count.fetch_sub(1);
            freed += class_size(c);
        }
        s.lock.unlock();
    }
    header().committed.fetch_sub(freed);
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
        if (!s.state.compare_exchange_strong(free, kClaiming)) continue;
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
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    if ((id = self_.load())) return id;
    char state;
    uint64_t start_time;
    if (!process_stat(getpid(), state, start_time)) throw SystemFailure(ENOENT, "/proc is not mounted");
    self_ = id = claim(getpid(), start_time);
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
                attachments->entries.emplace(Attachments::key(e.object, e.role(), e.kind()), &e);
            else
                attachments->free.push_back(&e);
        }
    self_ = owner;
}

bool Arena::alive(OwnerId owner) const {
    const Slot& s = slot(owner);
    if (s.generation.load() != owner >> kSlotBits || s.state.load() != kLive) return false;
    pid_t pid = s.pid.load();
    if (pid == 0) return true;  // about to be forked
    char state;
    uint64_t start_time;
    if (!process_stat(pid, state, start_time)) return false;
    return state != 'Z' && state != 'X' && (s.start_time == 0 || s.start_time == start_time);
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
            out[n++] = {s.generation.load() << kSlotBits | i, s.pid.load(), static_cast<uint64_t>(s.owned.load()),
                        s.waiting_on.load()};
    }
    return n;
}

bool Arena::reap(pid_t pid) {
    for (uint32_t i = 0; i < header().slots_used.load(); ++i) {
        Slot& s = header().slots[i];
        if (s.pid.load() != pid || s.state.load() != kLive) continue;
        OwnerId owner = s.generation.load() << kSlotBits | i;
        if (alive(owner)) continue;
        reap_slot(s, owner);
        return true;
    }
    return false;
}

int Arena::reap_dead() {
    int count = 0;
    for (uint32_t i = 0; i < header().slots_used.load(); ++i) {
        Slot& s = header().slots[i];
        OwnerId owner = s.generation.load() << kSlotBits | i;
        if (s.state.load() != kLive || alive(owner)) continue;
        reap_slot(s, owner);
        ++count;
    }
    return count;
}

void Arena::reap_slot(Slot& s, OwnerId owner) {
    uint32_t live = kLive;
    if (!s.state.compare_exchange_strong(live, kReaping)) return;
    // Blocks are freed by owner, so first everything reachable from a structure must be marked as its structure's.
    repair_structures(owner);
    release_all(s);
    if (s.owned.load() != 0) free_owned_by(owner);
    s.pid = 0;
    s.state = kFree;
}

void Arena::leave() {
    OwnerId owner = self_.exchange(0);
    if (!owner) return;
    Slot& s = slot(owner);
    if (s.owned.load() != 0) return;  // holds blocks still (they may be in use by other threads): left to reap()
    std::lock_guard lock(attachments->mutex);
    release_all(s);
    attachments->entries.clear();
    attachments->free.clear();
    s.pid = 0;
    s.state = kFree;
}

void Arena::repair_structures(OwnerId dead) {
    for (size_t c = 0; c < kClasses; ++c) {
        ClassState& s = header().classes[c];
        if (s.lock.take_from_dead(dead, self())) {
            repair_class(c);
            s.lock.unlock();
        }
    }
    if (header().objects.take_from_dead(dead, self())) header().objects.unlock();
    for (size_t c : {class_of_size(sizeof(Channel)), class_of_size(sizeof(Condition))}) {
        uint64_t carved = header().classes[c].carved.load();
        for (uint64_t i = 0; i < carved; ++i) {
            Offset block = region_start(c) + i * class_size(c);
            switch (meta(block).kind()) {
                case Kind::Channel:
                    at<Channel>(block)->recover(*this, dead);
                    break;
                case Kind::Condition:
                    at<Condition>(block)->recover(*this, dead);
                    break;
                default:
                    break;
            }
        }
    }
}

void Arena::free_owned_by(OwnerId dead) {
    std::vector<Offset> left;
    each_block([&](Offset block, Meta& m) {
        if (m.owner.load() == dead && m.kind() != Kind::Free) left.push_back(block);
    });
    for (Offset block : left) {
        if (meta(block).kind() == Kind::Channel) at<Channel>(block)->tear_down(*this);
        free(block);
    }
}

// ---- shared objects

void Arena::add_reference(Offset object, Role role, uint64_t kind) {
    Object& o = *at<Object>(object);
    if (role != Role::Plain) {
        auto end = static_cast<size_t>(role) - 1;
        (kind == kInFlight ? o.ends_in_flight : o.ends)[end].fetch_add(1);
    }
    o.references.fetch_add(kind == kInFlight ? uint64_t{1} << 32 : 1);
}

namespace {

// A free entry of the slot's table; a new chunk where there is none.
Entry* new_entry(Arena& a, Slot& slot, std::vector<Entry*>* free_entries, OwnerId owner) {
    if (free_entries && !free_entries->empty()) {
        Entry* entry = free_entries->back();
        free_entries->pop_back();
        return entry;
    }
    if (!free_entries)
        for (Offset c = slot.attachments; c; c = a.at<Chunk>(c)->next)
            for (Entry& e : a.at<Chunk>(c)->entries)
                if (!e.object) return &e;
    Offset block = a.allocate(sizeof(Chunk));
    a.disown(block);
    a.set_owned(block, owner);
    slot.owned.fetch_add(1);
    auto* chunk = new (a.at<Chunk>(block)) Chunk{};
    chunk->next = slot.attachments;
    slot.attachments = block;
    if (free_entries)
        for (size_t i = 1; i < Chunk::kEntries; ++i) free_entries->push_back(&chunk->entries[i]);
    return &chunk->entries[0];
}

void write_entry(Entry* entry, Offset object, uint32_t generation, Role role, uint32_t kind) {
    entry->generation = generation;
    entry->role_and_kind = static_cast<uint32_t>(role) | kind << 8;
    std::atomic_ref(entry->object).store(object, std::memory_order_release);
}

}  // namespace

void Arena::attach_new(Offset block, Role role) {
    add_reference(block, role, kAttached);
    {
        std::lock_guard lock(attachments->mutex);
        Entry* entry = new_entry(*this, slot(self()), &attachments->free, self());
        write_entry(entry, block, meta(block).generation(), role, kAttached);
        attachments->entries.emplace(Attachments::key(block, role, kAttached), entry);
    }
    disown(block);  // it belongs to whoever is attached
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
    if (!exists(handle) || meta(handle.offset).kind() != kind)
        throw ObjectDestroyed("the object is gone: nobody was attached to it any more, or it was destroyed");
    if (Entry* entry = attachments->take(handle.offset, role, kAttachedAhead)) {
        write_entry(entry, handle.offset, handle.generation, role, kAttached);
        attachments->entries.emplace(Attachments::key(handle.offset, role, kAttached), entry);
        return;
    }
    Entry* entry = new_entry(*this, slot(self()), &attachments->free, self());
    {
        Guard guard(header().objects);
        if (!exists(handle)) {
            attachments->free.push_back(entry);
            throw ObjectDestroyed("the object is gone: nobody was attached to it any more");
        }
        add_reference(handle.offset, role, kAttached);
        Object& o = *at<Object>(handle.offset);
        if (o.references.load() >> 32) {
            o.references.fetch_sub(uint64_t{1} << 32);
            if (role != Role::Plain) {
                Word& in_flight = o.ends_in_flight[static_cast<size_t>(role) - 1];
                if (in_flight.load()) in_flight.fetch_sub(1);
            }
        }
    }
    write_entry(entry, handle.offset, handle.generation, role, kAttached);
    attachments->entries.emplace(Attachments::key(handle.offset, role, kAttached), entry);
}

void Arena::attach_for(OwnerId owner, Handle handle, Role role) {
    Guard guard(header().objects);
    if (!exists(handle)) throw ObjectDestroyed("an object that the new process was given is gone");
    add_reference(handle.offset, role, kAttached);
    write_entry(new_entry(*this, slot(owner), nullptr, owner), handle.offset, handle.generation, role, kAttachedAhead);
}

void Arena::send(Offset object, Role role) {
    std::lock_guard lock(attachments->mutex);
    uint64_t key = Attachments::key(object, role, kInFlight);
    // Entries of messages that have arrived serve again.
    bool recorded = attachments->entries.count(key) > at<Object>(object)->references.load() >> 32;
    Entry* entry = recorded ? nullptr : new_entry(*this, slot(self()), &attachments->free, self());
    add_reference(object, role, kInFlight);
    if (!entry) return;
    write_entry(entry, object, meta(object).generation(), role, kInFlight);
    attachments->entries.emplace(key, entry);
}

void Arena::release(Offset object, Role role) {
    Entry* entry;
    {
        std::lock_guard lock(attachments->mutex);
        entry = attachments->take(object, role, kAttached);
        if (!entry) return;  // a forked child's copy of its parent's handle
        std::atomic_ref(entry->object).store(0, std::memory_order_release);
        attachments->free.push_back(entry);
    }
    drop(object, role);
}

void Arena::drop(Offset object, Role role) {
    Object& o = *at<Object>(object);
    if (role != Role::Plain && o.ends[static_cast<size_t>(role) - 1].fetch_sub(1) == 1 && o.end_is_gone(role))
        at<Channel>(object)->end_went();
    destroy_if_unused(object, o.references.fetch_sub(1) - 1);
}

void Arena::drop_in_flight(Handle handle, Role role) {
    uint64_t left;
    {
        Guard guard(header().objects);
        if (!exists(handle)) return;
        Object& o = *at<Object>(handle.offset);
        if (o.references.load() >> 32 == 0) return;  // the message arrived
        if (role != Role::Plain) {
            Word& in_flight = o.ends_in_flight[static_cast<size_t>(role) - 1];
            if (in_flight.load() == 0) return;
            in_flight.fetch_sub(1);
        }
        left = o.references.fetch_sub(uint64_t{1} << 32) - (uint64_t{1} << 32);
        if (role != Role::Plain && o.end_is_gone(role)) at<Channel>(handle.offset)->end_went();
    }
    destroy_if_unused(handle.offset, left);
}

void Arena::destroy_if_unused(Offset object, uint64_t references) {
    if (references != 0) return;
    {
        Guard guard(header().objects);
        Meta& m = meta(object);
        if (at<Object>(object)->references.load() != 0 || m.owner.load() != 0 || m.kind() == Kind::Free) return;
        adopt(object);  // found by reap() if this process is killed before the end
    }
    if (meta(object).kind() == Kind::Channel) at<Channel>(object)->tear_down(*this);
    free(object);
}

void Arena::release_all(Slot& s) {
    for (Offset c = s.attachments; c;) {
        auto* chunk = at<Chunk>(c);
        for (Entry& e : chunk->entries) {
            Offset object = std::atomic_ref(e.object).exchange(0);
            if (!object) continue;
            if (e.kind() == kInFlight)
                drop_in_flight({object, e.generation}, e.role());
            else
                drop(object, e.role());
        }
        Offset next = chunk->next;
        s.attachments = next;
        free(c);
        c = next;
    }
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
        if (start >= deadline) return Status::Timeout;
        Status status = futex_wait(word_, seen, deadline, slice);
        if (status == Status::Interrupted) return status;
        if (now() - start >= slice && word_.load() == seen) {
            if (!arena().alive(seen & ~kContended) && word_.compare_exchange_strong(seen, self | kContended))
                return Status::Recovered;
            slice = std::min<Nanoseconds>(slice * 2, 500'000'000);
        }
    }
}

bool SharedLock::take_from_dead(OwnerId dead, OwnerId self) {
    uint32_t seen = word_.load();
    return (seen & ~kContended) == dead && word_.compare_exchange_strong(seen, self | (seen & kContended));
}

}  // namespace dragon
