// Shared objects: the processes attached to them, and their release when no process is.
#include <algorithm>
#include <new>

#include "channel.hpp"
#include "layout.hpp"
#include "sync.hpp"

namespace dragon {

Attachments* attachments = new Attachments;

namespace {

constexpr Nanoseconds kReleases = 1'000'000'000;  // how long release_when_possible() waits

}  // namespace

Guard& Arena::guard_of(Offset object) const {
    return header().guards[(object / 64 * 0x9e3779b97f4a7c15) >> 57];
}
static_assert(kGuards == 128);

void Arena::give(Offset block, OwnerId to) {
    OwnerId from = meta(block).owner;
    if (from == to) return;
    slot(to).owned.fetch_add(1);
    meta(block).owner = to;
    if (from) slot(from).owned.fetch_sub(1);
}

Handle Arena::desk() const { return {header().desk.load(), header().desk_generation.load()}; }

void Arena::set_desk(Handle channel) {
    header().desk_generation = channel.generation;
    header().desk = channel.offset;
}

// Adds a chunk of free entries to a process's table.
Offset Arena::new_chunk(OwnerId owner) {
    Slot& s = slot(owner);
    Offset block = allocate(sizeof(Chunk));
    auto* chunk = new (at<Chunk>(block)) Chunk;
    chunk->next = s.attachments;
    give(block, owner);
    s.attachments = block;
    return block;
}

// Returns a free entry in the table of a process that does not run yet or runs on another node.
Entry* Arena::entry_for(OwnerId owner) {
    auto arrived = [&](const Entry& e) {
        return e.kind() == kInFlight &&
               (!exists({e.object, e.generation}) || at<Object>(e.object)->in_flight(e.role()) == 0);
    };
    for (Offset c = slot(owner).attachments; c; c = at<Chunk>(c)->next)
        for (Entry& e : at<Chunk>(c)->entries)
            if (!e.object || arrived(e)) return &e;
    return at<Chunk>(new_chunk(owner))->entries;
}

// Returns a free entry in the table of this process. The caller holds the mutex of the attachments.
Entry* Arena::own_entry() {
    Attachments& t = *attachments;
    if (t.free.empty() && t.entries.size() >= t.next_sweep) {
        // Reuse the entries of messages that have arrived, or whose object no longer exists.
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
    try {
        Change change(*this, block);
        change.begin(block, entry);
        at<Object>(block)->count(role, 1);
        entry->set(handle, role, kAttached);
        m.set(handle.generation, kind);
        m.owner = 0;  // the attached processes share it
        change.commit();
    } catch (...) {
        attachments->free.push_back(entry);
        free(block);
        throw;
    }
    slot(self()).owned.fetch_sub(1);
    attachments->entries.emplace(Attachments::Key{block, handle.generation, role, kAttached}, entry);
}

bool Arena::is_block(Offset offset) const {
    if (offset < region_start(0) || offset >= size_) return false;
    size_t c = class_of(offset);
    Offset within = offset - region_start(c);
    return within % class_size(c) == 0 && within / class_size(c) < header().classes[c].carved.load();
}

bool Arena::is_data(Offset block, size_t size) const {
    return is_block(block) && capacity(block) >= size && meta(block).kind() == Kind::Data;
}

bool Arena::exists(Handle handle) const {
    if (!is_block(handle.offset)) return false;
    const Meta& m = meta(handle.offset);
    return m.generation() == handle.generation && is_object(m.kind()) &&
           at<Object>(handle.offset)->references.load() != 0;
}

// The role comes from outside this process, with the name of the object, so it is checked.
void Arena::check(Handle handle, Role role) const {
    bool has_ends = meta(handle.offset).kind() == Kind::Channel && at<Channel>(handle.offset)->pipe();
    if (role == Role::Plain || (has_ends && (role == Role::Reader || role == Role::Writer))) return;
    throw NoSuchRole("the name of an object says role " + std::to_string(static_cast<uint32_t>(role)) +
                     ", which this object does not have: the name was changed, or is no name");
}

void Arena::attach(Handle handle, Kind kind, Role role, bool arrives) {
    std::lock_guard lock(attachments->mutex);
    auto check_it = [&] {
        if (!exists(handle) || meta(handle.offset).kind() != kind)
            throw ObjectDestroyed(
                "the object is gone: nobody was attached to it any more, it was destroyed, or it is of "
                "another run");
        check(handle, role);
    };
    check_it();
    Attachments::Key key{handle.offset, handle.generation, role, kAttached};
    if (Entry* entry = attachments->take({handle.offset, handle.generation, role, kAttachedAhead})) {
        entry->set(handle, role, kAttached);
        attachments->entries.emplace(key, entry);
        return;
    }
    Entry* entry = own_entry();
    try {
        Change change(*this, handle.offset);
        check_it();
        Object& o = *at<Object>(handle.offset);
        change.begin(handle.offset, entry);
        // In one step, so that no process sees a pipe's end at 0 in between.
        o.count(role, arrives && o.in_flight(role) ? 1 - kOneInFlight : 1);
        entry->set(handle, role, kAttached);
        change.commit();
    } catch (...) {
        attachments->free.push_back(entry);
        throw;
    }
    attachments->entries.emplace(key, entry);
}

void Arena::attach_for(OwnerId owner, Handle handle, Role role) {
    Entry* entry = entry_for(owner);
    Change change(*this, handle.offset);
    if (!exists(handle)) throw ObjectDestroyed("an object that the new process was given is gone");
    check(handle, role);
    change.begin(handle.offset, entry);
    at<Object>(handle.offset)->count(role, 1);
    entry->set(handle, role, kAttachedAhead);
    change.commit();
}

void Arena::guest_attach(OwnerId guest, Handle handle, Role role) {
    Entry* entry = entry_for(guest);
    Change change(*this, handle.offset);
    if (!exists(handle))
        throw ObjectDestroyed(
            "the object is gone: nobody was attached to it any more, it was destroyed, or it is of another "
            "run");
    check(handle, role);
    Object& o = *at<Object>(handle.offset);
    change.begin(handle.offset, entry);
    o.count(role, o.in_flight(role) ? 1 - kOneInFlight : 1);
    entry->set(handle, role, kAttached);
    change.commit();
}

void Arena::guest_send(OwnerId guest, Handle handle, Role role) {
    Entry* entry = entry_for(guest);
    Change change(*this, handle.offset);
    if (!exists(handle)) throw ObjectDestroyed("the object is gone");
    check(handle, role);
    change.begin(handle.offset, entry);
    at<Object>(handle.offset)->count(role, kOneInFlight);
    entry->set(handle, role, kInFlight);
    change.commit();
}

void Arena::guest_release(OwnerId guest, Handle handle, Role role) {
    for (Offset c = slot(guest).attachments; c; c = at<Chunk>(c)->next)
        for (Entry& e : at<Chunk>(c)->entries)
            if (e.object == handle.offset && e.generation == handle.generation && e.role() == role &&
                e.kind() == kAttached)
                return drop(handle, role, kAttached, e);
}

void Arena::guest_left(OwnerId guest) { reap_slot(slot(guest), guest); }

void Arena::send(Handle handle, Role role) {
    std::lock_guard lock(attachments->mutex);
    Attachments::Key key{handle.offset, handle.generation, role, kInFlight};
    Object& o = *at<Object>(handle.offset);
    // Entries of messages that have arrived are reused.
    bool recorded = attachments->entries.count(key) > o.in_flight(role);
    Entry* entry = recorded ? nullptr : own_entry();
    try {
        Change change(*this, handle.offset);
        change.begin(handle.offset, entry);
        o.count(role, kOneInFlight);
        if (entry) entry->set(handle, role, kInFlight);
        change.commit();
    } catch (...) {
        if (entry) attachments->free.push_back(entry);
        throw;
    }
    if (entry) attachments->entries.emplace(key, entry);
}

void Arena::release(Handle handle, Role role, Nanoseconds limit) {
    Entry* entry;
    {
        std::lock_guard lock(attachments->mutex);
        entry = attachments->take({handle.offset, handle.generation, role, kAttached});
    }
    if (!entry) return;  // a forked child's copy of its parent's handle
    try {
        drop(handle, role, kAttached, *entry, limit);
    } catch (...) {
        std::lock_guard lock(attachments->mutex);
        attachments->entries.emplace(
            Attachments::Key{handle.offset, handle.generation, entry->role(), kAttached}, entry);
        throw;
    }
    std::lock_guard lock(attachments->mutex);
    attachments->free.push_back(entry);
    // Entries of sent messages stay for a while and do not need the bell.
    auto& entries = attachments->entries;
    bool in_use = std::any_of(entries.lower_bound({handle.offset, handle.generation, Role::Plain, 0}),
                              entries.lower_bound({handle.offset, handle.generation + 1, Role::Plain, 0}),
                              [](auto& entry) { return entry.first.kind == kAttached; });
    if (!in_use) close_bell(handle);
}

void Arena::release_when_possible(Handle handle, Role role) {
    try {
        release(handle, role, kReleases);
    } catch (const StillLocked&) {
        std::lock_guard lock(attachments->mutex);
        attachments->late.emplace_back(handle, role);
        attachments->is_late = true;
        return;
    }
    release_late();
}

void Arena::release_late() {
    if (!attachments->is_late.load(std::memory_order_relaxed)) return;  // the usual case, without a lock
    std::vector<std::pair<Handle, Role>> late;
    {
        std::lock_guard lock(attachments->mutex);
        late.swap(attachments->late);
        attachments->is_late = false;
    }
    for (auto& [handle, role] : late) try {
            release(handle, role, 0);
        } catch (const StillLocked&) {
            std::lock_guard lock(attachments->mutex);
            attachments->late.emplace_back(handle, role);
            attachments->is_late = true;
        }
}

void Arena::drop(Handle handle, Role role, uint32_t kind, Entry& entry, Nanoseconds limit) {
    // A plain entry of a pipe belongs to a process that released its end, and may have been killed before it
    // notified the other end.
    bool tells = role == Role::Plain && kind != kInFlight && meta(handle.offset).kind() == Kind::Channel &&
                 at<Channel>(handle.offset)->pipe();
    if (tells) at<Channel>(handle.offset)->end_went(*this);
    bool last = false, end_goes = false;
    {
        Change change(*this, handle.offset, limit);
        Object& o = *at<Object>(handle.offset);
        if (kind == kInFlight && (!exists(handle) || o.in_flight(role) == 0)) {  // the message has arrived
            entry.object = 0;
            return;
        }
        uint64_t one = kind == kInFlight ? kOneInFlight : 1;
        last = o.references.load() == one;
        end_goes = !last && role != Role::Plain && o.end(role).load() == one;
        change.begin(handle.offset, &entry);
        if (end_goes) {
            // The object is kept until the processes at the other end have been notified.
            o.count(role, -one);
            o.count(Role::Plain, 1);
            entry.set(handle, Role::Plain, kAttached);
        } else {
            o.count(role, -one);
            if (last) adopt(handle.offset);  // found by reap() if this process is killed before it is freed
            entry.object = 0;
        }
        change.commit();
    }
    if (end_goes) return drop(handle, Role::Plain, kAttached, entry, limit);
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

}  // namespace dragon
