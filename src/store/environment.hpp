// An LMDB environment in a private folder. A writer replaces pages and changes none that is in use, so a
// reader sees one state, and a writer that is killed changes nothing.
#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../external/lmdb/lmdb.h"

namespace dragon::store {

inline MDB_val to_val(std::string_view text) { return {text.size(), const_cast<char*>(text.data())}; }
inline std::string_view to_text(const MDB_val& val) {
    return {static_cast<const char*>(val.mv_data), val.mv_size};
}

// Throws Blocked for lack of pages, std::runtime_error for other errors of LMDB but MDB_NOTFOUND. Returns
// whether it was found.
bool check(int code, const char* what);

class Reading;

// A process must open the same environment only once, and a forked child must not use its parent's: readers
// of the two would share a place, and pages that one of them reads could be overwritten. So they are kept
// here by folder, and a child opens its own.
class Environment : public std::enable_shared_from_this<Environment> {
  public:
    // The one that this process has open, or a new one. Throws std::system_error, PermissionError's text
    // included, if the folder is not private.
    static std::shared_ptr<Environment> open(const std::string& folder, size_t map_size);
    Environment(const Environment&) = delete;

    // Whether a parent process has opened it.
    bool is_inherited() const;
    MDB_env* get() const { return env_; }
    MDB_dbi records() const { return records_; }
    int descriptor() const;
    size_t page_size() const { return page_size_; }
    // Whether a process reads a state, whose pages cannot be overwritten.
    bool is_read() const;
    // A reading of the present state, which is one that was returned before if there is one.
    std::shared_ptr<Reading> pin();

  private:
    friend class Reading;
    Environment(const std::string& folder, size_t map_size);
    ~Environment();
    static void close(Environment* environment);

    const std::string folder_;
    const int generation_;
    MDB_env* env_ = nullptr;
    MDB_dbi records_ = 0;
    size_t page_size_ = 0;
    std::mutex mutex_;
    std::vector<MDB_txn*> spare_;  // of readings that ended, with their places
    std::weak_ptr<Reading> pinned_;
};

// One state of an environment, as long as it exists.
class Reading {
  public:
    explicit Reading(std::shared_ptr<Environment> environment);
    Reading(const Reading&) = delete;
    ~Reading() { end(); }
    MDB_txn* txn() const { return txn_; }
    Environment& environment() const { return *environment_; }
    void end();

  private:
    std::shared_ptr<Environment> environment_;
    MDB_txn* txn_ = nullptr;
};

// A change, which has no effect unless commit() is called.
class Writing {
  public:
    explicit Writing(std::shared_ptr<Environment> environment);
    Writing(const Writing&) = delete;
    ~Writing() {
        if (txn_) mdb_txn_abort(txn_);
    }
    void commit();
    MDB_txn* txn() const { return txn_; }

  private:
    std::shared_ptr<Environment> environment_;  // which another thread may close
    MDB_txn* txn_ = nullptr;
};

// Why a write was not done now: the writers are paused, LMDB has no page that no reader uses, or the memory
// of the shard, or of the node, does not suffice.
struct Blocked : std::runtime_error {
    enum Why { Paused, NoPages, NoRoom } why;
    Blocked(Why w, const std::string& text) : std::runtime_error(text), why(w) {}
};

}  // namespace dragon::store
