// One shard of a distributed dictionary: an environment, and words that all processes of the node share.
#pragma once

#include <functional>

#include "../core/sync.hpp"
#include "entries.hpp"

namespace dragon::store {

// The indices of a shard's words.
enum Index : uint32_t {
    kChanges,  // grows with each change
    kState,
    kNewest,     // checkpoint
    kWritten,    // bytes since room was made
    kRoom,       // bytes that may be written until then
    kAllocated,  // bytes of the file that have memory
    kChosen,     // whether a key may be with another manager than its hash says
    kSince,      // when the dictionary restored a checkpoint last
    kWords,
};
// Values of the state.
enum State : uint64_t { kUsable, kFrozen, kGone, kPaused };

// An error that a client gets, by the name of its Python class.
struct Failure : std::runtime_error {
    std::string kind;
    Failure(std::string k, const std::string& text) : std::runtime_error(text), kind(std::move(k)) {}
};

struct Settings {
    std::string folder;
    size_t capacity;
    uint64_t working_set;
    bool wait_for_keys;
    uint64_t persist_freq;  // 0: checkpoints that leave the working set are not written to disk
    std::string name, where;
};

class Shard {
  public:
    // Writes checkpoints that leave the working set to disk.
    using Retire = std::function<void(const std::vector<uint64_t>&)>;

    // The caller keeps the words attached as long as it uses this.
    Shard(const Settings& settings, const Words& words);

    // Closes it in this process, once no reading is left.
    void close() { environment_.reset(); }
    std::shared_ptr<Environment> environment();
    const Settings& settings() const { return settings_; }
    uint64_t newest() const { return word(kNewest); }
    uint64_t oldest() const;
    // Throw a Failure if it is destroyed, or the checkpoint is not held any more.
    void check_alive() const;
    bool may_be_elsewhere() const { return word(kChosen) != 0; }
    // Whether a write can be done without waiting, without asking for more memory, and without writing a
    // checkpoint to disk.
    bool takes_at_once(size_t size, size_t entries, uint64_t checkpoint) const;
    void check_readable(uint64_t checkpoint) const;
    std::shared_ptr<Reading> reading() { return std::make_shared<Reading>(environment()); }
    Entries entries(MDB_txn* txn) { return {txn, environment()->records(), rules()}; }

    // Each write needs the shard's lock. They throw Blocked, and then nothing is changed.
    //
    // A write to a checkpoint; `size` bytes in so many entries. `change(entries)` does it.
    template <class Change>
    void write(size_t size, size_t entries_count, uint64_t checkpoint, const Retire& retire, Change change) {
        Writing writing(environment());
        begin(writing, size, entries_count, checkpoint, retire);
        Entries entries = this->entries(writing.txn());
        change(entries);
        writing.commit();
        changed();
    }
    // A change that takes no memory, whatever the state.
    template <class Change>
    void change(Change change) {
        Writing writing(environment());
        Entries entries = this->entries(writing.txn());
        change(entries);
        writing.commit();
    }
    void changed();
    void begin_anew(uint64_t checkpoint, uint64_t since);
    // Frees the memory of versions that no reader can see.
    void collect();
    void copy_to(const std::string& folder);

    struct Usage {
        uint64_t used, entries, records;
    };
    Usage usage();
    uint64_t count(uint64_t checkpoint);

  private:
    std::atomic<uint64_t>& word(Index i) const { return words_.at(i); }
    Rules rules() const { return {settings_.working_set, settings_.wait_for_keys, oldest()}; }
    void begin(Writing& writing, size_t size, size_t entries, uint64_t checkpoint, const Retire& retire);
    void move_to(uint64_t checkpoint, const Retire& retire);
    void make_room(MDB_txn* txn, size_t size, size_t entries);
    void allocate(size_t size);
    [[noreturn]] void retired(uint64_t checkpoint) const;

    const Settings settings_;
    const Words& words_;
    std::shared_ptr<Environment> environment_;
};

}  // namespace dragon::store
