// A shard of a distributed dictionary, as processes of its node use it.
#include "store.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <system_error>

namespace dragon::py {

namespace {

using store::Blocked;
using store::Entries;
using store::Reading;
using store::Stored;

constexpr size_t kWithoutGil = 256 * 1024;  // bytes of a write during which other threads may run

struct ShardHandle {
    nb::object kept[2];
    WordsHandle& words;
    LockHandle& lock;
    store::Shard shard;
    Nanoseconds timeout = kForever;  // for other writers

    ShardHandle(const store::Settings& settings, nb::object w, nb::object l)
        : kept{w, l},
          words(nb::cast<WordsHandle&>(w)),
          lock(nb::cast<LockHandle&>(l)),
          shard(settings, *words.use()) {}
};

using Self = nb::handle_t<ShardHandle>;

ShardHandle& of(Self self) { return *nb::inst_ptr<ShardHandle>(self); }

// ---- conversions

nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

nb::object to_memory(std::string_view text) {
    return nb::steal(PyMemoryView_FromMemory(const_cast<char*>(text.data()),
                                             static_cast<Py_ssize_t>(text.size()), PyBUF_READ));
}

nb::object to_python(const Stored& stored) {
    static PyObject* type =
        nb::object(nb::module_::import_("dragon.shards.shard").attr("Stored")).release().ptr();
    nb::list blobs;
    for (const auto& blob : stored.blobs) {
        nb::list pieces;
        for (auto piece : blob) pieces.append(to_memory(piece));
        blobs.append(pieces);
    }
    return nb::handle(type)(stored.flags, stored.checkpoint, to_bytes(stored.key), to_bytes(stored.head),
                            blobs);
}

nb::object to_python(const std::optional<Stored>& stored) { return stored ? to_python(*stored) : nb::none(); }

// ---- reading

// A reading of one state, and the record of a key in it.
struct Found {
    WordsHandle::Use words;
    std::shared_ptr<Reading> reading;
    std::optional<Stored> stored;

    Found(ShardHandle& s, std::string_view key, uint64_t checkpoint) : words(s.words.use()) {
        s.shard.check_readable(checkpoint);
        reading = s.shard.reading();
        stored = s.shard.entries(reading->txn()).find(key, checkpoint);
    }
};

nb::object missing() {
    static PyObject* value =
        nb::object(nb::module_::import_("dragon.shards.shard").attr("MISSING")).release().ptr();
    return nb::borrow(value);
}

nb::object read(Self self, nb::bytes key, uint64_t checkpoint, nb::object take) {
    Found found(of(self), to_text(key), checkpoint);
    return found.stored ? take(to_python(*found.stored)) : missing();
}

// The head of a record without blobs; None if there is no such key, False if it has blobs.
nb::object head(Self self, nb::bytes key, uint64_t checkpoint) {
    Found found(of(self), to_text(key), checkpoint);
    if (!found.stored) return nb::none();
    return found.stored->blobs.empty() ? nb::object(to_bytes(found.stored->head))
                                       : nb::object(nb::bool_(false));
}

nb::object read_many(Self self, nb::list keys, uint64_t checkpoint, nb::object take) {
    ShardHandle& s = of(self);
    auto words = s.words.use();
    s.shard.check_readable(checkpoint);
    auto reading = s.shard.reading();
    Entries entries = s.shard.entries(reading->txn());
    nb::list records;
    for (nb::handle key : keys)
        records.append(to_python(entries.find(to_text(nb::cast<nb::bytes>(key)), checkpoint)));
    return take(records);
}

nb::object view(Self self, nb::bytes key, uint64_t checkpoint) {
    Found found(of(self), to_text(key), checkpoint);
    if (!found.stored) return nb::none();
    return nb::make_tuple(found.reading, to_python(*found.stored));
}

nb::object pin(Self self, nb::bytes key, uint64_t checkpoint) {
    ShardHandle& s = of(self);
    auto words = s.words.use();
    s.shard.check_readable(checkpoint);
    auto reading = s.shard.environment()->pin();
    auto stored = s.shard.entries(reading->txn()).find(to_text(key), checkpoint);
    if (!stored) return nb::none();
    nb::object owner = stored->blobs.empty() ? nb::none() : nb::cast(reading);
    return nb::make_tuple(owner, to_python(*stored));
}

// Steps through the records of one state.
struct ScanHandle {
    std::shared_ptr<Reading> reading;
    std::optional<store::Scan> scan;

    nb::object next() {
        auto stored = scan ? scan->next() : std::nullopt;
        if (!stored) {
            close();
            throw nb::stop_iteration();
        }
        return to_python(*stored);
    }
    void close() {
        scan.reset();
        reading.reset();
    }
};

ScanHandle* scan(Self self, uint64_t checkpoint) {
    ShardHandle& s = of(self);
    auto words = s.words.use();
    s.shard.check_readable(checkpoint);
    auto* made = new ScanHandle{s.shard.reading(), {}};
    made->scan.emplace(s.shard.entries(made->reading->txn()), checkpoint);
    return made;
}

nb::list flagged_keys(Self self, uint64_t checkpoint) {
    ShardHandle& s = of(self);
    auto words = s.words.use();
    s.shard.check_readable(checkpoint);
    auto reading = s.shard.reading();
    store::Scan scan(s.shard.entries(reading->txn()), checkpoint);
    nb::list keys;
    while (auto found = scan.next()) {
        auto flags = static_cast<uint8_t>(found->flags & (store::kPersistent | store::kBroadcast));
        keys.append(nb::make_tuple(to_bytes(found->key), flags, found->checkpoint));
    }
    return keys;
}

// All entries of one state in batches, blobs before the records that refer to them.
struct Export {
    std::shared_ptr<Reading> reading;
    std::optional<store::Cursor> cursor;
    size_t most;
    bool in_blobs = true, begun = false;

    bool step() {
        if (in_blobs) {
            if (begun ? cursor->next() : cursor->from(store::kBlobs)) return begun = true;
            in_blobs = begun = false;
        }
        bool more = begun ? cursor->next() : cursor->first();
        begun = true;
        return more && cursor->name() < store::kBlobs;
    }
    nb::tuple next() {
        nb::list names, data;
        size_t size = 0;
        while (cursor && size < most) {
            if (!step()) {
                cursor.reset();
                break;
            }
            names.append(to_bytes(cursor->name()));
            data.append(to_memory(cursor->data()));
            size += cursor->data().size();
        }
        if (names.size() == 0) throw nb::stop_iteration();
        return nb::make_tuple(names, data);
    }
};

Export* exported(Self self, size_t most) {
    ShardHandle& s = of(self);
    auto words = s.words.use();
    auto* made = new Export{s.shard.reading(), {}, most};
    made->cursor.emplace(made->reading->txn(), s.shard.environment()->records());
    return made;
}

// ---- writing

template <class F>
void locked(Self self, F f) {
    ShardHandle& s = of(self);
    auto words = s.words.use();
    auto lock = s.lock.use();
    OwnerId me = lock.arena().self();
    uint64_t thread = thread_id();
    Nanoseconds deadline = s.timeout == kForever ? kForever : now() + s.timeout;
    Status status =
        wait(lock, Purpose::Acquire, deadline, [&](Nanoseconds d) { return lock->acquire(me, thread, d); });
    if (status == Status::Timeout) {
        self.attr("_busy")();
        throw nb::value_error("the shard is busy");
    }
    if (status != Status::Ok && status != Status::Recovered)
        raise(python.destroyed, "the dictionary was destroyed");
    struct Release {
        LockHandle::Use& lock;
        OwnerId me;
        uint64_t thread;
        ~Release() { lock->release(me, thread); }
    } release{lock, me, thread};
    f(s.shard);
}

template <class Change>
void write(Self self, size_t size, size_t entries, uint64_t checkpoint, Change change) {
    nb::object since = nb::none();
    for (;;) {
        Blocked::Why why;
        std::string text;
        try {
            return locked(self, [&](store::Shard& shard) {
                auto retire = [&](const std::vector<uint64_t>& checkpoints) {
                    self.attr("retire")(checkpoints);
                };
                shard.write(size, entries, checkpoint, retire, change);
            });
        } catch (const Blocked& blocked) {
            why = blocked.why;
            text = blocked.what();
        }
        since = self.attr("_blocked")(static_cast<int>(why), text, size, since);
    }
}

// Changes that hold no Python object let other threads run meanwhile.
void copy_in(Entries& entries, std::string_view key, const store::Record& record, uint64_t checkpoint,
             uint8_t flags) {
    std::optional<WithoutGil> without;
    if (record.size() >= kWithoutGil) without.emplace();
    entries.put(key, record, checkpoint, flags);
}

void put(Self self, nb::bytes key, nb::object record, uint64_t checkpoint, uint8_t flags) {
    Given given(record);
    write(self, given.record.size(), given.record.entries(), checkpoint,
          [&](Entries& entries) { copy_in(entries, to_text(key), given.record, checkpoint, flags); });
}

void put_many(Self self, nb::list records, uint64_t checkpoint, uint8_t flags) {
    std::vector<std::pair<nb::bytes, Given>> all;
    size_t size = 0, count = 0;
    for (nb::handle each : records) {
        auto& [key, given] = all.emplace_back(nb::cast<nb::bytes>(each[0]), Given(each[1]));
        size += given.record.size();
        count += given.record.entries();
    }
    write(self, size, count, checkpoint, [&](Entries& entries) {
        for (const auto& [key, given] : all) copy_in(entries, to_text(key), given.record, checkpoint, flags);
    });
}

bool put_new(Self self, nb::bytes key, nb::object record, uint64_t checkpoint) {
    Given given(record);
    bool done = false;
    write(self, given.record.size(), given.record.entries(), checkpoint, [&](Entries& entries) {
        done = !entries.find(to_text(key), checkpoint);
        if (done) copy_in(entries, to_text(key), given.record, checkpoint, 0);
    });
    return done;
}

nb::object pop(Self self, nb::bytes key, uint64_t checkpoint, nb::object take) {
    nb::object result = missing();
    write(self, 0, 1, checkpoint, [&](Entries& entries) {
        auto stored = entries.find(to_text(key), checkpoint);
        if (!stored) return;
        result = take.is_none() ? nb::object(nb::bool_(true)) : take(to_python(*stored));
        entries.remove(to_text(key), checkpoint);
    });
    return result;
}

nb::object update(Self self, nb::bytes key, uint64_t checkpoint, nb::object change) {
    nb::object result;
    write(self, static_cast<size_t>(sysconf(_SC_PAGESIZE)), 1, checkpoint, [&](Entries& entries) {
        nb::object changed = change(to_python(entries.find(to_text(key), checkpoint)));
        entries.put(to_text(key), Given(changed[0]).record, checkpoint, nb::cast<uint8_t>(changed[1]));
        result = changed[2];
    });
    return result;
}

void clear(Self self, uint64_t checkpoint) {
    store::Shard& shard = of(self).shard;
    write(self, 0, 1, checkpoint, [&](Entries& entries) {
        if (shard.settings().working_set == 1) return entries.drop_all();
        std::vector<std::string> keys;
        store::Scan scan(entries, checkpoint);
        while (auto found = scan.next())
            if (!shard.settings().wait_for_keys || found->checkpoint == checkpoint)
                keys.emplace_back(found->key);
        for (const std::string& key : keys) entries.remove(key, checkpoint);
    });
}

void load(Self self, nb::list names, nb::list data) {
    std::vector<std::pair<nb::bytes, Memory>> all;
    size_t size = 0;
    for (size_t i = 0; i < names.size(); ++i) {
        const Memory& memory = all.emplace_back(nb::cast<nb::bytes>(names[i]), Memory(data[i])).second;
        size += memory.text().size();
    }
    write(self, size, all.size(), of(self).shard.newest(), [&](Entries& entries) {
        for (const auto& [name, memory] : all) entries.set(to_text(name), memory.text());
    });
}

void note_writer(Self self, nb::bytes client, std::optional<uint64_t> checkpoint) {
    locked(self, [&](store::Shard& shard) {
        shard.check_alive();
        shard.change([&](Entries& entries) { entries.note_writer(to_text(client), checkpoint); });
        shard.changed();
    });
}

nb::list writers(Self self) {
    ShardHandle& s = of(self);
    auto words = s.words.use();
    s.shard.check_alive();
    auto reading = s.shard.reading();
    nb::list found;
    for (const auto& [client, checkpoint] : s.shard.entries(reading->txn()).writers())
        found.append(nb::make_tuple(to_bytes(client), checkpoint));
    return found;
}

nb::dict usage(Self self) {
    ShardHandle& s = of(self);
    auto words = s.words.use();
    auto found = s.shard.usage();
    nb::dict result;
    result["total"] = s.shard.settings().capacity;
    result["used"] = found.used;
    result["entries"] = found.entries;
    result["records"] = found.records;
    return result;
}

}  // namespace

void bind_store(nb::module_& m) {
    static PyObject* full = PyErr_NewException("dragon._core.ShardFull", PyExc_RuntimeError, nullptr);
    m.attr("ShardFull") = nb::borrow(full);
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            try {
                std::rethrow_exception(p);
            } catch (const Blocked& blocked) {
                raise(full, blocked.what());
            } catch (const store::Failure& failure) {
                raise_named(failure.kind, failure.what());
            } catch (const std::system_error& error) {
                raise_named("OSError " + std::to_string(error.code().value()), error.what());
            }
        } catch (nb::python_error& raised) {
            raised.restore();
        }
    });
    nb::class_<Reading>(m, "Reading", "One state of a shard, as long as it exists.")
        .def("abort", &Reading::end);
    nb::class_<ScanHandle>(m, "Scan",
                           "The records of one state of a shard; each is valid until the next is taken.")
        .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
        .def("__next__", &ScanHandle::next)
        .def("close", &ScanHandle::close);
    nb::class_<Export>(m, "Export")
        .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
        .def("__next__", &Export::next);
    nb::class_<ShardHandle>(m, "Shard", nb::is_weak_referenceable())
        .def(
            "__init__",
            [](ShardHandle* self, nb::object words, nb::object lock, std::string folder, size_t capacity,
               uint64_t working_set, bool wait_for_keys, uint64_t persist_freq, std::string name,
               std::string where) {
                store::Settings settings{folder,       capacity, working_set, wait_for_keys,
                                         persist_freq, name,     where};
                new (self) ShardHandle(settings, words, lock);
            },
            nb::arg("words"), nb::arg("lock"), nb::arg("folder"), nb::arg("capacity"), nb::arg("working_set"),
            nb::arg("wait_for_keys"), nb::arg("persist_freq"), nb::arg("name"), nb::arg("where"))
        .def_prop_rw(
            "timeout",
            [](Self self) -> std::optional<double> {
                Nanoseconds timeout = of(self).timeout;
                if (timeout == kForever) return {};
                return static_cast<double>(timeout) / 1e9;
            },
            [](Self self, std::optional<double> seconds) {
                of(self).timeout =
                    seconds ? static_cast<Nanoseconds>(std::clamp(*seconds, 0.0, 1e9) * 1e9) : kForever;
            },
            nb::arg().none())
        .def("read", &read, nb::arg("key"), nb::arg("checkpoint"), nb::arg("take"))
        .def("head", &head, nb::arg("key"), nb::arg("checkpoint"))
        .def("read_many", &read_many, nb::arg("keys"), nb::arg("checkpoint"), nb::arg("take"))
        .def("_view", &view, nb::arg("key"), nb::arg("checkpoint"))
        .def("pin", &pin, nb::arg("key"), nb::arg("checkpoint"))
        .def("scan", &scan, nb::arg("checkpoint"))
        .def("flagged_keys", &flagged_keys, nb::arg("checkpoint"))
        .def("export", &exported, nb::arg("most"))
        .def(
            "contains",
            [](Self self, nb::bytes key, uint64_t checkpoint) {
                return Found(of(self), to_text(key), checkpoint).stored.has_value();
            },
            nb::arg("key"), nb::arg("checkpoint"))
        .def(
            "has_had",
            [](Self self, nb::bytes key, uint64_t checkpoint) {
                ShardHandle& s = of(self);
                auto words = s.words.use();
                s.shard.check_readable(checkpoint);
                auto reading = s.shard.reading();
                return s.shard.entries(reading->txn()).newest(to_text(key), checkpoint).has_value();
            },
            nb::arg("key"), nb::arg("checkpoint"))
        .def(
            "count",
            [](Self self, uint64_t checkpoint) {
                auto words = of(self).words.use();
                return of(self).shard.count(checkpoint);
            },
            nb::arg("checkpoint"))
        .def(
            "_behind",
            [](Self self, uint64_t first, uint64_t end) {
                auto words = of(self).words.use();
                auto reading = of(self).shard.reading();
                return of(self).shard.entries(reading->txn()).behind(first, end);
            },
            nb::arg("first"), nb::arg("end"))
        .def("put", &put, nb::arg("key"), nb::arg("record"), nb::arg("checkpoint"), nb::arg("flags") = 0)
        .def("put_many", &put_many, nb::arg("records"), nb::arg("checkpoint"), nb::arg("flags") = 0)
        .def("put_new", &put_new, nb::arg("key"), nb::arg("record"), nb::arg("checkpoint"))
        .def("pop", &pop, nb::arg("key"), nb::arg("checkpoint"), nb::arg("take").none() = nb::none())
        .def("_update", &update, nb::arg("key"), nb::arg("checkpoint"), nb::arg("change"))
        .def("clear", &clear, nb::arg("checkpoint"))
        .def(
            "advance",
            [](Self self, uint64_t checkpoint) {
                if (checkpoint > of(self).shard.newest()) write(self, 0, 1, checkpoint, [](Entries&) {});
            },
            nb::arg("checkpoint"))
        .def("load", &load, nb::arg("names"), nb::arg("data"))
        .def(
            "begin_anew",
            [](Self self, uint64_t checkpoint, uint64_t since) {
                locked(self, [&](store::Shard& shard) { shard.begin_anew(checkpoint, since); });
            },
            nb::arg("checkpoint"), nb::arg("since") = 0)
        .def("note_writer", &note_writer, nb::arg("client"), nb::arg("checkpoint").none())
        .def("writers", &writers)
        .def("usage", &usage)
        .def(
            "freeze",
            [](Self self, bool on) {
                locked(self, [&](store::Shard& shard) {
                    shard.check_alive();
                    word(*of(self).words.use(), store::kState) = on ? store::kFrozen : store::kUsable;
                });
            },
            nb::arg("on"))
        .def("settle", [](Self self) { locked(self, [](store::Shard&) {}); })
        .def("_collect", [](Self self) { locked(self, [](store::Shard& shard) { shard.collect(); }); })
        .def("_is_read",
             [](Self self) {
                 auto words = of(self).words.use();
                 return of(self).shard.environment()->is_read();
             })
        .def(
            "_copy_to", [](Self self, const std::string& folder) { of(self).shard.copy_to(folder); },
            nb::arg("folder"))
        .def("close", [](Self self) { of(self).shard.close(); });
}

}  // namespace dragon::py
