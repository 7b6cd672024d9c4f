// The format of a shard's records, in a transaction of LMDB.
//
// The name of a key's entry is the key itself, or its digest if it is longer than LMDB allows. With a working
// set of several checkpoints the name is the digest and the checkpoint, which counts backwards, so that the
// first entry from a checkpoint's name on is the newest one that the checkpoint shows. Blobs are entries of
// their own.
#pragma once

#include <cstdint>
#include <optional>

#include "environment.hpp"

namespace dragon::store {

// Flags of a record. The first two are those that a client gives.
inline constexpr uint8_t kPersistent = 2, kBroadcast = 4;

using Blob = std::vector<std::string_view>;  // its pieces

// A value to be stored: a head and blobs.
struct Record {
    std::string_view head;
    std::vector<std::string_view> blobs;
    size_t size() const;
    size_t entries() const { return 1 + blobs.size(); }
};

// A record in a shard, valid during its transaction.
struct Stored {
    uint8_t flags = 0;
    uint64_t checkpoint = 0;
    std::string_view key, head;
    std::vector<Blob> blobs;
    size_t size() const;
};

// Which checkpoints the shard holds, and what they show.
struct Rules {
    uint64_t working_set = 1;
    bool wait_for_keys = false;
    uint64_t oldest = 0;
    bool versioned() const { return working_set > 1; }
};

class Cursor {
  public:
    Cursor(MDB_txn* txn, MDB_dbi records);
    Cursor(const Cursor&) = delete;
    ~Cursor() { mdb_cursor_close(cursor_); }
    // Each returns whether there is an entry.
    bool from(std::string_view name) {
        key_ = to_val(name);
        return move(MDB_SET_RANGE);
    }
    bool first() { return move(MDB_FIRST); }
    bool next() { return move(MDB_NEXT); }
    std::string_view name() const { return to_text(key_); }
    std::string_view data() const { return to_text(data_); }

  private:
    bool move(MDB_cursor_op how);
    MDB_cursor* cursor_;
    MDB_val key_{}, data_{};
};

class Entries {
  public:
    Entries(MDB_txn* txn, MDB_dbi records, const Rules& rules)
        : txn_(txn), records_(records), rules_(rules) {}

    // The record of a key that a checkpoint shows. With wait_for_keys that is one of this checkpoint, or a
    // persistent one.
    std::optional<Stored> find(std::string_view key, uint64_t checkpoint) const;
    // The newest record up to a checkpoint, unless it is a deletion.
    std::optional<Stored> newest(std::string_view key, uint64_t checkpoint) const;
    void put(std::string_view key, const Record& record, uint64_t checkpoint, uint8_t flags);
    void remove(std::string_view key, uint64_t checkpoint);

    // How many keys of checkpoints from `first` to `end`, but persistent ones, are not in the next
    // checkpoint.
    uint64_t behind(uint64_t first, uint64_t end) const;
    // The number of entries that do not count as keys.
    uint64_t hidden() const;
    void hide(int64_t count);
    // Removes the versions of every key that no checkpoint of the working set shows.
    void drop_unseen();
    void drop_all();

    // The clients that write, each with its checkpoint.
    std::vector<std::pair<std::string, uint64_t>> writers() const;
    void note_writer(std::string_view client, std::optional<uint64_t> checkpoint);

    // The data of any entry.
    std::optional<std::string_view> get(std::string_view name) const;
    void set(std::string_view name, std::string_view data);
    bool erase(std::string_view name);

  private:
    friend class Scan;
    std::string name_of(std::string_view key, uint64_t checkpoint) const;
    Stored stored(std::string_view key, uint64_t checkpoint, std::string_view data) const;
    bool is_seen(const Stored& stored, uint64_t checkpoint) const;
    char* reserve(std::string_view name, size_t size);
    uint32_t put_blobs(uint64_t number, const std::vector<std::string_view>& blobs);
    void drop_blobs(uint64_t number, uint32_t first, uint32_t end);
    void drop_entry(std::string_view name);
    void drop_older(std::string_view name);

    MDB_txn* txn_;
    MDB_dbi records_;
    Rules rules_;
};

// Steps through the records that a checkpoint shows.
class Scan {
  public:
    Scan(const Entries& entries, uint64_t checkpoint);
    std::optional<Stored> next();

  private:
    Entries entries_;
    uint64_t checkpoint_;
    Cursor cursor_;
    std::string last_;
    bool begun_ = false;
};

// Whether an entry of that name is a record: not a piece of a blob, and not internal to the shard.
bool is_record(std::string_view name);
inline constexpr std::string_view kBlobs{"\xff", 1};  // the names of pieces begin so

}  // namespace dragon::store
