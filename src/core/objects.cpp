// Shared objects: who is attached to them, and their end when nobody is.
#include <algorithm>
#include <new>

#include "channel.hpp"
#include "layout.hpp"
#include "sync.hpp"

namespace dragon {

Attachments* attachments = new Attachments;

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

// A free entry in the table of a process that does not run yet, or runs on another node.
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
                "the object is gone: nobody was attached to it any more, it was destroyed, or it is of "
                "another run");
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

void Arena::guest_attach(OwnerId guest, Handle handle, Role role) {
    Change change(*this);
    if (!exists(handle))
        throw ObjectDestroyed(
            "the object is gone: nobody was attached to it any more, it was destroyed, or it is of another "
            "run");
    Entry* entry = entry_for(guest);
    Object& o = *at<Object>(handle.offset);
    change.begin(handle.offset, entry);
    o.count(role, o.in_flight(role) ? 1 - kOneInFlight : 1);
    entry->set(handle, role, kAttached);
    change.commit();
}

void Arena::guest_send(OwnerId guest, Handle handle, Role role) {
    Change change(*this);
    if (!exists(handle)) throw ObjectDestroyed("the object is gone");
    Entry* entry = entry_for(guest);
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
    // Entries of what was sent stay a while and need no bell.
    auto& entries = attachments->entries;
    bool in_use = std::any_of(entries.lower_bound({handle.offset, handle.generation, Role::Plain, 0}),
                              entries.lower_bound({handle.offset, handle.generation + 1, Role::Plain, 0}),
                              [](auto& entry) { return entry.first.kind == kAttached; });
    if (!in_use) close_bell(handle);
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
        if (end_goes) {
            // Again: a reader that took the last message in between has emptied the bell.
            if (role == Role::Writer) at<Channel>(handle.offset)->ring_end(*this);
            at<Channel>(handle.offset)->end_went();
        }
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

}  // namespace dragon
