// Tests of the shards of dictionaries: what they hold against a model, and what remains of writers that were
// killed.
#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "../../src/store/shard.hpp"
#include "core_test.hpp"

namespace dragon {
namespace {

using store::Entries;
using store::Record;

// A private folder that is removed again.
struct Folder {
    std::string path;
    Folder() {
        char name[] = "/tmp/core_test_store_XXXXXX";
        CHECK(mkdtemp(name));
        path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
};

Words& new_words() {
    Arena& a = arena();
    Handle handle = a.create<Words>(Kind::Words, Role::Plain, Words::bytes(store::kWords), store::kWords);
    return *a.at<Words>(handle.offset);
}

store::Settings settings(const Folder& folder, uint64_t working_set = 1, size_t capacity = 64 << 20) {
    return {folder.path, capacity, working_set, false, 0, "name", "manager 0"};
}

struct Value {
    std::string head;
    std::vector<std::string> blobs;
    bool operator==(const Value&) const = default;
    Record record() const { return {head, {blobs.begin(), blobs.end()}}; }
};

Value value_of(const store::Stored& stored) {
    Value value{std::string(stored.head), {}};
    for (const store::Blob& blob : stored.blobs) {
        std::string& whole = value.blobs.emplace_back();
        for (auto piece : blob) whole += piece;
    }
    return value;
}

using Model = std::map<std::string, Value>;

Model content(store::Shard& shard, uint64_t checkpoint) {
    Model found;
    auto reading = shard.reading();
    store::Scan scan(shard.entries(reading->txn()), checkpoint);
    while (auto stored = scan.next()) CHECK(found.emplace(stored->key, value_of(*stored)).second);
    return found;
}

void put(store::Shard& shard, const std::string& key, const Value& value, uint64_t checkpoint = 0) {
    Record record = value.record();
    shard.write(record.size(), record.entries(), checkpoint, {},
                [&](Entries& entries) { entries.put(key, record, checkpoint, 0); });
}

void remove(store::Shard& shard, const std::string& key, uint64_t checkpoint = 0) {
    shard.write(0, 1, checkpoint, {}, [&](Entries& entries) { entries.remove(key, checkpoint); });
}

class Random {
  public:
    explicit Random(unsigned seed) : engine_(seed) {}
    size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(engine_); }
    std::string text(size_t size) { return std::string(size, static_cast<char>('a' + below(26))); }
    // A few keys, so that they are written again; some are longer than names can be.
    std::string key() {
        size_t which = below(20);
        return "k" + std::to_string(which) + (which % 5 ? "" : std::string(600, 'x'));
    }
    Value value() {
        Value made{text(below(2000)), {}};
        for (size_t count = below(3); count--;) made.blobs.push_back(text(32768 + below(40000)));
        return made;
    }

  private:
    std::mt19937 engine_;
};

TEST(shard_holds_what_a_map_would) {
    new_arena();
    for (unsigned seed = 0; seed < 5; ++seed) {
        Folder folder;
        store::Shard shard(settings(folder), new_words());
        Random random(seed);
        Model model;
        for (int i = 0; i < 300; ++i) {
            std::string key = random.key();
            if (random.below(3)) {
                model[key] = random.value();
                put(shard, key, model[key]);
            } else {
                model.erase(key);
                remove(shard, key);
            }
            CHECK(shard.count(0) == model.size());
        }
        CHECK(content(shard, 0) == model);
    }
}

TEST(each_checkpoint_of_the_working_set_shows_what_it_was) {
    new_arena();
    constexpr uint64_t kSet = 3;
    for (unsigned seed = 0; seed < 5; ++seed) {
        Folder folder;
        store::Shard shard(settings(folder, kSet), new_words());
        Random random(seed);
        std::map<uint64_t, Model> models;
        for (uint64_t checkpoint = 0; checkpoint < 6; ++checkpoint) {
            models[checkpoint] = checkpoint ? models[checkpoint - 1] : Model();
            Model& model = models[checkpoint];
            for (int i = 0; i < 40; ++i) {
                std::string key = random.key();
                if (random.below(3)) {
                    model[key] = random.value();
                    put(shard, key, model[key], checkpoint);
                } else {
                    model.erase(key);
                    remove(shard, key, checkpoint);
                }
            }
            for (uint64_t shown = shard.oldest(); shown <= checkpoint; ++shown)
                CHECK(content(shard, shown) == models[shown]);
        }
        shard.collect();
        for (uint64_t shown = shard.oldest(); shown <= shard.newest(); ++shown)
            CHECK(content(shard, shown) == models[shown]);
        try {
            shard.check_readable(0);
            CHECK(!"a retired checkpoint can be read");
        } catch (const store::Failure& failure) {
            CHECK(failure.kind.starts_with("DDictCheckpointSyncError"));
        }
    }
}

TEST(reading_sees_one_state_while_it_exists) {
    new_arena();
    Folder folder;
    store::Shard shard(settings(folder), new_words());
    Value before{"before", {std::string(50000, 'b')}}, after{"after", {std::string(50000, 'a')}};
    put(shard, "key", before);
    auto pinned = shard.environment()->pin();
    CHECK(pinned == shard.environment()->pin());
    for (int i = 0; i < 50; ++i) put(shard, "key", after);
    CHECK(value_of(*shard.entries(pinned->txn()).find("key", 0)) == before);
    CHECK(content(shard, 0).at("key") == after);
    CHECK(shard.environment()->is_read());
    pinned.reset();
    CHECK(!shard.environment()->is_read());
}

TEST(full_shard_is_unchanged_by_what_does_not_fit) {
    new_arena();
    Folder folder;
    store::Shard shard(settings(folder, 1, 1 << 20), new_words());
    Value small{std::string(1000, 's'), {}}, large{"", {std::string(2 << 20, 'l')}};
    put(shard, "small", small);
    try {
        put(shard, "large", large);
        CHECK(!"it was stored");
    } catch (const store::Blocked& blocked) {
        CHECK(blocked.why == store::Blocked::NoRoom);
    }
    CHECK(content(shard, 0) == Model({{"small", small}}));
}

// A forked child opens the environment itself. A writer among the children that is killed leaves all or
// nothing.
TEST(killed_writers_leave_whole_records) {
    new_arena();
    Folder folder;
    store::Shard shard(settings(folder), new_words());
    Random random(1);
    for (int round = 0; round < 20; ++round) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int i = 0;; ++i) {
                std::string text = std::to_string(i % 100);
                put(shard, "key" + std::to_string(i % 7),
                    {text, {std::string(40000, static_cast<char>(i % 100))}});
            }
        }
        usleep(static_cast<useconds_t>(2000 + random.below(8000)));
        kill(child, SIGKILL);
        CHECK(waitpid(child, nullptr, 0) == child);
        for (auto& [key, value] : content(shard, 0)) {
            if (key == "own") continue;
            CHECK(value.blobs.size() == 1 && value.blobs[0].size() == 40000);
            auto byte = static_cast<char>(std::stoi(value.head));
            CHECK(
                std::all_of(value.blobs[0].begin(), value.blobs[0].end(), [&](char c) { return c == byte; }));
        }
        put(shard, "own", {"value", {}});
    }
    CHECK(content(shard, 0).at("own") == (Value{"value", {}}));
}

}  // namespace
}  // namespace dragon
