#include "shard.hpp"

#include <fcntl.h>

#include <filesystem>
#include <system_error>

namespace dragon::store {

namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));  // at least as large as a page of LMDB
const size_t kClaim = 8 * kPage;  // bytes that a small write may add to the file
constexpr size_t kEntry =
    640;  // bytes of an entry besides its value: its name, its slot, and unused ends of pages
constexpr size_t kStep = 8 << 20;  // bytes by which the file grows

// In addition to the values there are the pages of the tree, and those that the last transactions freed.
size_t map_size(size_t capacity) { return (capacity + capacity / 8 + kStep) / kPage * kPage; }

size_t used(const MDB_stat& stat) {
    return (stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) * stat.ms_psize;
}

}  // namespace

Shard::Shard(const Settings& settings, const Words& words) : settings_(settings), words_(words) {
    check_alive();
    environment();
}

std::shared_ptr<Environment> Shard::environment() {
    if (!environment_ || environment_->is_inherited()) {
        check_alive();
        environment_ = Environment::open(settings_.folder, map_size(settings_.capacity));
    }
    return environment_;
}

uint64_t Shard::oldest() const {
    uint64_t newest = this->newest();
    return newest >= settings_.working_set ? newest - settings_.working_set + 1 : 0;
}

void Shard::check_alive() const {
    if (word(kState) == kGone)
        throw Failure("DestroyedError", "the dictionary '" + settings_.name + "' was destroyed");
}

void Shard::check_readable(uint64_t checkpoint) const {
    check_alive();
    if (checkpoint < oldest()) retired(checkpoint);
}

void Shard::retired(uint64_t checkpoint) const {
    throw Failure("DDictCheckpointSyncError DDICT_CHECKPOINT_RETIRED",
                  "checkpoint " + std::to_string(checkpoint) + " is retired: " + settings_.where + " holds " +
                      std::to_string(oldest()) + " to " + std::to_string(newest()) +
                      "; sync_to_newest_checkpoint() moves to the newest one");
}

void Shard::changed() {
    word(kChanges).fetch_add(1);
    const_cast<Words&>(words_).changed();
}

void Shard::begin(Writing& writing, size_t size, size_t entries, uint64_t checkpoint, const Retire& retire) {
    switch (word(kState)) {
        case kUsable:
            break;
        case kFrozen:
            throw Failure("DDictError INVALID_OPERATION",
                          "frozen: " + settings_.where + " takes no changes until unfreeze()");
        case kGone:
            check_alive();
            [[fallthrough]];
        default:
            throw Blocked(Blocked::Paused, "the writers are paused");
    }
    if (newest() != checkpoint) move_to(checkpoint, retire);
    size_t claim = size + entries * kClaim;
    if (word(kWritten).fetch_add(claim) + claim > word(kRoom)) make_room(writing.txn(), size, entries);
}

bool Shard::takes_at_once(size_t size, size_t entries, uint64_t checkpoint) const {
    bool persists = settings_.persist_freq && newest() != checkpoint;
    return word(kState) == kUsable && !persists && word(kWritten) + size + entries * kClaim <= word(kRoom);
}

void Shard::move_to(uint64_t checkpoint, const Retire& retire) {
    uint64_t newest = this->newest();
    if (checkpoint < oldest()) retired(checkpoint);
    if (checkpoint < newest) return;
    if (settings_.persist_freq && checkpoint >= settings_.working_set) {
        std::vector<uint64_t> left;
        for (uint64_t number = oldest(); number <= std::min(newest, checkpoint - settings_.working_set);
             ++number)
            if (number % settings_.persist_freq == 0) left.push_back(number);
        retire(left);
    }
    word(kNewest) = checkpoint;
}

// Checks that a write of `size` bytes fits, and gives the file memory for its growth: without that, a write
// to the mapping on a full file system would kill the process. It is valid for as many bytes as the words
// then say.
void Shard::make_room(MDB_txn* txn, size_t size, size_t entries) {
    size_t most = map_size(settings_.capacity);
    MDB_stat stat;
    MDB_envinfo info;
    check(mdb_stat(txn, environment()->records(), &stat), "LMDB");
    check(mdb_env_info(environment()->get(), &info), "LMDB");
    size_t end = (info.me_last_pgno + 1) * stat.ms_psize, in_use = used(stat);
    size_t left = settings_.capacity > in_use ? settings_.capacity - in_use : 0;
    // Each entry may change some pages; all together at most the existing pages and those that they fill.
    size_t claim = std::min(size + entries * kClaim, 2 * (size + entries * kEntry) + in_use + kClaim);
    if (size > left) throw Blocked(Blocked::NoRoom, "make it with a larger total_mem");
    size_t wanted = std::min(most, end + claim);
    if (wanted > word(kAllocated)) allocate(std::min(most, (wanted + kStep - 1) / kStep * kStep));
    size_t allocated = word(kAllocated);
    size_t room = allocated == most ? left : std::min(left, allocated > end ? allocated - end : 0);
    word(kRoom) = room;
    word(kWritten) = claim;
}

void Shard::allocate(size_t size) {
    int code;
    do code = posix_fallocate(environment()->descriptor(), 0, static_cast<off_t>(size));
    while (code == EINTR);
    if (code == ENOSPC || code == ENOMEM || code == EFBIG)
        throw Blocked(Blocked::NoRoom,
                      std::filesystem::path(settings_.folder).parent_path().string() + " has no room for it");
    if (code) throw std::system_error(code, std::generic_category(), settings_.folder);
    word(kAllocated) = size;
}

void Shard::begin_anew(uint64_t checkpoint, uint64_t since) {
    check_alive();
    change([&](Entries& entries) {
        entries.drop_all();
        word(kNewest) = checkpoint;
        if (since) word(kSince) = since;
    });
    changed();
}

void Shard::collect() {
    int dead;
    check(mdb_reader_check(environment()->get(), &dead), "LMDB, readers");
    change([&](Entries& entries) {
        if (settings_.working_set > 1) entries.drop_unseen();
        entries.hide(0);
    });
    // Pages that a transaction freed can be used by the one after the next.
    change([](Entries& entries) { entries.hide(0); });
}

void Shard::copy_to(const std::string& folder) {
    int code = mdb_env_copy(environment()->get(), folder.c_str());
    if (code > 0) throw std::system_error(code, std::generic_category(), folder);
    check(code, "LMDB, copy");
}

Shard::Usage Shard::usage() {
    check_alive();
    auto reading = this->reading();
    MDB_stat stat;
    check(mdb_stat(reading->txn(), environment()->records(), &stat), "LMDB");
    uint64_t hidden = entries(reading->txn()).hidden();
    return {std::min(used(stat), settings_.capacity), stat.ms_entries, stat.ms_entries - hidden};
}

uint64_t Shard::count(uint64_t checkpoint) {
    check_readable(checkpoint);
    auto reading = this->reading();
    if (settings_.working_set == 1) return usage().records;
    uint64_t count = 0;
    Scan scan(entries(reading->txn()), checkpoint);
    while (auto found = scan.next()) count += !(found->flags & kBroadcast);
    return count;
}

}  // namespace dragon::store
