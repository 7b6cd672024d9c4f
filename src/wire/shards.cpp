#include "shards.hpp"

#include <sched.h>

#include <cstring>

namespace dragon::wire {

namespace {

constexpr int kTries = 20;  // to get a lock, which is usually held for a few microseconds

const Outcome kNotHere = Outcome::of(false, kElsewhere);

Outcome missing(const store::Shard& shard) {
    return Outcome::of(false, shard.may_be_elsewhere() ? kChosen : 0);
}

class Reader {
  public:
    explicit Reader(std::string_view text) : left_(text) {}
    template <class T>
    T number() {
        T value;
        memcpy(&value, bytes(sizeof value).data(), sizeof value);
        return value;
    }
    std::string_view bytes(size_t size) {
        if (size > left_.size()) throw Invalid("an operation on a shard that is cut off");
        std::string_view found = left_.substr(0, size);
        left_.remove_prefix(size);
        return found;
    }
    bool empty() const { return left_.empty(); }

  private:
    std::string_view left_;
};

store::Record record_in(Reader& reader) {
    store::Record record;
    record.head = reader.bytes(reader.number<uint32_t>());
    auto count = reader.number<uint32_t>();
    std::vector<uint64_t> sizes;
    while (count--) sizes.push_back(reader.number<uint64_t>());
    for (uint64_t size : sizes) record.blobs.push_back(reader.bytes(size));
    return record;
}

Outcome outcome_of(const store::Stored& stored) {
    std::vector<std::string> joined;
    std::vector<std::string_view> blobs;
    for (const store::Blob& blob : stored.blobs) blobs.push_back(blob.front());  // small ones have one piece
    Outcome out;
    out.kind = kRecord;
    out.payload = Payload::of(encoded({stored.head, blobs}));
    return out;
}

}  // namespace

std::string encoded(const store::Record& record) {
    std::string text;
    auto add = [&](auto number) { text.append(reinterpret_cast<const char*>(&number), sizeof number); };
    text.reserve(record.size() + 8 + 8 * record.blobs.size());
    add(static_cast<uint32_t>(record.head.size()));
    text += record.head;
    add(static_cast<uint32_t>(record.blobs.size()));
    for (auto blob : record.blobs) add(static_cast<uint64_t>(blob.size()));
    for (auto blob : record.blobs) text += blob;
    return text;
}

store::Record decoded(std::string_view text) {
    Reader reader(text);
    return record_in(reader);
}

void Shards::serve(Name words, Name lock, const store::Settings& settings) {
    Arena& a = arena();
    Words& shared = *a.at<Words>(words.offset);
    shards_[words.offset].reset(new Served{words, *a.at<Lock>(lock.offset), store::Shard(settings, shared)});
}

Outcome Shards::perform(const Operation& operation, std::string_view payload) {
    auto found = shards_.find(operation.object.offset);
    if (found == shards_.end() || found->second->name.generation != operation.object.generation)
        return kNotHere;
    Served& served = *found->second;
    Reader reader(payload);
    std::string_view key = reader.bytes(reader.number<uint32_t>());
    store::Record record = reader.empty() ? store::Record() : record_in(reader);
    try {
        if (operation.what == Do::ShardGet || operation.what == Do::ShardContains)
            return read(served.shard, operation, key);
        return write(served, operation, key, record);
    } catch (const store::Failure& failure) {
        return Outcome::failed({failure.kind, failure.what()});
    } catch (const store::Blocked&) {
        return kNotHere;
    } catch (const Invalid&) {
        throw;
    } catch (const std::exception& error) {
        return Outcome::failed({"RuntimeError", error.what()});
    }
}

Outcome Shards::read(store::Shard& shard, const Operation& operation, std::string_view key) {
    shard.check_readable(operation.a);
    auto reading = shard.reading();
    auto stored = shard.entries(reading->txn()).find(key, operation.a);
    if (!stored) return missing(shard);
    if (operation.what == Do::ShardContains) return Outcome::of(true);
    return stored->size() <= kSmallRecord ? outcome_of(*stored) : kNotHere;
}

Outcome Shards::write(Served& served, const Operation& operation, std::string_view key,
                      const store::Record& record) {
    OwnerId self = arena().self();
    Status status = Status::Timeout;
    for (int i = 0; i < kTries && status == Status::Timeout; ++i) {
        if (i) sched_yield();
        status = served.lock.acquire(self, 0, 0);
    }
    if (status != Status::Ok && status != Status::Recovered) return kNotHere;
    struct Release {
        Lock& lock;
        OwnerId self;
        ~Release() { lock.release(self, 0); }
    } release{served.lock, self};
    store::Shard& shard = served.shard;
    if (!shard.takes_at_once(record.size(), record.entries(), operation.a)) return kNotHere;
    Outcome out = Outcome::of(true, 1);
    auto change = [&](store::Entries& entries) {
        if (operation.what == Do::ShardPut)
            return entries.put(key, record, operation.a, static_cast<uint8_t>(operation.b));
        auto stored = entries.find(key, operation.a);
        if (operation.what == Do::ShardPutNew) {
            if (stored)
                out = Outcome::of(true, 0);
            else
                entries.put(key, record, operation.a, 0);
            return;
        }
        if (!stored) {
            out = missing(shard);
        } else if (operation.b && stored->size() > kSmallRecord) {
            out = kNotHere;
        } else {
            if (operation.b) out = outcome_of(*stored);
            entries.remove(key, operation.a);
        }
    };
    shard.write(record.size(), record.entries(), operation.a, {}, change);
    return out;
}

}  // namespace dragon::wire
