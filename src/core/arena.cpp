#include "arena.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

#include "layout.hpp"
#include "system_calls.hpp"

namespace dragon {

namespace {

Arena* current = nullptr;

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

// ---- the process's arena

Arena& arena() {
    if (!current) throw ObjectDestroyed("this process belongs to no run");
    return *current;
}
bool has_arena() { return current != nullptr; }
void set_arena(Arena* a) { current = a; }

// ---- making and mapping

Arena::Mapping Arena::make(uint64_t limit) {
    int fd = anonymous_memory("dragon");
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
        if (Mapping mapping = map_all(fd, region, size); mapping.base) return mapping;
    }
}

Arena::Arena(Mapping m) : fd_(m.fd), base_(m.base), region_(m.region), size_(m.size) {
    if (m.sparse) be_sparse();
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, [] {
            if (current) {
                current->self_.store(0);
                current->reach_after_fork();
            }
            attachments = new Attachments;  // the parent's may be locked
        });
    });
}

Arena::Arena(uint64_t limit) : Arena(make(limit)) {
    if (posix_fallocate(fd_, 0, round_up(kTables, kPage)) != 0)
        throw OutOfMemory("no memory for the arena's own tables (" + std::to_string(kTables) + " bytes)");
    Header& h = header();
    h.limit = std::min(limit, region_);
    h.region = region_;
    std::random_device random;
    h.id = uint64_t{random()} << 32 | random();
    h.magic = kMagic;
}

Arena* Arena::open(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0) throw SystemFailure(errno, "fstat");
    auto size = static_cast<size_t>(st.st_size);
    if (size < kMetaStart) throw SystemFailure(EINVAL, "not an arena");
    Mapping mapping = map_all(fd, 0, size);
    if (!mapping.base) throw SystemFailure(ENOMEM, "no addresses for the arena (ulimit -v)");
    auto* h = reinterpret_cast<Header*>(mapping.base);
    if (h->magic != kMagic) {
        munmap(mapping.base, mapping.sparse ? kMetaStart : size);
        throw SystemFailure(EINVAL, "not an arena");
    }
    mapping.region = h->region;
    return new Arena(mapping);
}

uint64_t Arena::id() const { return header().id; }
void Arena::set_keeper(OwnerId owner) { header().keeper = owner; }
bool Arena::kept() const {
    OwnerId keeper = header().keeper.load();
    return keeper == 0 || alive(keeper);
}
uint64_t Arena::next_number() { return header().number.fetch_add(1); }

uint64_t Arena::committed() const {
    uint64_t total = round_up(kTables, kPage);
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

Offset Arena::meta_start(size_t c) const { return kMetaStart + c * (region_ / 4); }
Offset Arena::region_start(size_t c) const { return round_up(meta_start(kClasses), 2 * kMiB) + c * region_; }
size_t Arena::class_of(Offset block) const { return (block - region_start(0)) / region_; }

Meta& Arena::meta(Offset block) const {
    size_t c = class_of(block);
    uint64_t index = (block - region_start(c)) / class_size(c);
    return *at<Meta>(meta_start(c) + index * sizeof(Meta));
}

Offset Arena::block_at(Offset inside) const {
    size_t c = class_of(inside), size = class_size(c);
    Offset start = region_start(c);
    return start + (inside - start) / size * size;
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
    if (uint64_t total = committed(); total > h.limit) {
        trim(std::max(total - h.limit, kEnough));
        total = committed();
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
        commit(s, meta_start(c) + s.committed_meta, kPage);
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

static std::string no_addresses(size_t size) {
    return "asked for " + std::to_string(size) +
           " bytes of shared memory; this process has no addresses left for them (ulimit -v, RLIMIT_AS)";
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
    auto reachable = [&](Offset it) {
        if (sparse_ && !try_to_reach(it)) throw OutOfMemory(no_addresses(size));
    };
    try {
        if (s.free) {
            reachable(s.free);
            block = take_first(s.free, s.free_count, me);
        } else if (s.cold) {
            reachable(s.cold);
            commit(s, s.cold, class_size(c));
            block = take_first(s.cold, s.cold_count, me);
        } else {
            uint64_t index = s.carved.load();
            carve(c, index);
            block = region_start(c) + index * class_size(c);
            reachable(block);
            slot(me).owned.fetch_add(1);
            meta(block).owner = me;
            // Every run counts from a number of its own, so that handles of other runs are not taken for its
            // own.
            meta(block).set(static_cast<uint32_t>(h.id), Kind::Data);
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

uint64_t Arena::trim(uint64_t enough) {
    uint64_t freed = 0;
    for (size_t c = kClasses; c-- > 0;) {  // the largest first: that takes the fewest calls
        ClassState& s = header().classes[c];
        bool whole_pages = class_size(c) % kPage == 0;  // smaller ones share them with what is in use
        if (!whole_pages || !s.free || !s.lock.try_lock(self())) continue;
        while (freed < enough && s.free && give_pages_back(s.free, class_size(c))) freed += class_size(c);
        s.lock.unlock();
    }
    return freed;
}

}  // namespace dragon
