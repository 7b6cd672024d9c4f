#include "entries.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace dragon::store {

namespace {

constexpr uint8_t kLongKey = 1, kDeleted = 8, kHasBlobs = 16;
constexpr size_t kLongestName = 480;  // longer keys are replaced by their digest
constexpr char kVersioned = '\xfe';
constexpr std::string_view kFirst{"\1", 1};  // entries before this name are internal to the shard
constexpr std::string_view kWriter{"\0w", 2}, kHidden{"\0hidden", 7};
constexpr size_t kDigest = 16, kPrefix = 1 + kDigest;
constexpr size_t kPiece = size_t{1} << 31;  // bytes of an entry

uint64_t rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

// SipHash-2-4 with 128 bits (https://www.aumasson.jp/siphash/siphash.pdf) and a fixed key. Two keys with the
// same digest are an error where they meet, so the digest only has to make that improbable.
std::string digest(std::string_view text) {
    uint64_t v0 = 0x736f6d6570736575, v1 = 0x646f72616e646f6d ^ 0xee, v2 = 0x6c7967656e657261,
             v3 = 0x7465646279746573;
    auto rounds = [&](int count) {
        while (count--) {
            v0 += v1, v1 = rotated(v1, 13) ^ v0, v0 = rotated(v0, 32);
            v2 += v3, v3 = rotated(v3, 16) ^ v2;
            v0 += v3, v3 = rotated(v3, 21) ^ v0;
            v2 += v1, v1 = rotated(v1, 17) ^ v2, v2 = rotated(v2, 32);
        }
    };
    auto mix = [&](uint64_t word) {
        v3 ^= word;
        rounds(2);
        v0 ^= word;
    };
    size_t at = 0;
    uint64_t word;
    for (; at + 8 <= text.size(); at += 8) {
        memcpy(&word, text.data() + at, 8);
        mix(word);
    }
    word = 0;
    memcpy(&word, text.data() + at, text.size() - at);
    mix(word | static_cast<uint64_t>(text.size()) << 56);
    uint64_t halves[2];
    v2 ^= 0xee;
    rounds(4);
    halves[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    rounds(4);
    halves[1] = v0 ^ v1 ^ v2 ^ v3;
    return {reinterpret_cast<const char*>(halves), sizeof halves};
}

template <class T>
T read_at(std::string_view data, size_t at) {
    T value;
    if (at + sizeof value > data.size()) throw std::runtime_error("an entry of a dictionary is damaged");
    memcpy(&value, data.data() + at, sizeof value);
    return value;
}

template <class T>
char* append(char* to, T value) {
    memcpy(to, &value, sizeof value);
    return to + sizeof value;
}

std::string big_endian(uint64_t value, size_t bytes) {
    std::string text(bytes, '\0');
    for (size_t i = bytes; i--; value >>= 8) text[i] = static_cast<char>(value);
    return text;
}

uint64_t number_in(std::string_view text) {
    uint64_t value = 0;
    for (char byte : text) value = value << 8 | static_cast<uint8_t>(byte);
    return value;
}

std::string versioned(std::string_view key, uint64_t checkpoint) {
    return kVersioned + digest(key) + big_endian(UINT64_MAX - checkpoint, 8);
}

uint64_t version_in(std::string_view name) { return UINT64_MAX - number_in(name.substr(kPrefix)); }

std::string piece_name(uint64_t number, uint32_t piece) {
    return std::string(kBlobs) + big_endian(number, 8) + big_endian(piece, 4);
}

// Where the blobs of an entry are described: the number in the names of their pieces, how many pieces there
// are, how many blobs, and the size of each.
struct Table {
    uint64_t number = 0;
    uint32_t pieces = 0, blobs = 0;
    size_t start = 0, end = 0;
};

size_t after_key(std::string_view data) {
    if (data.empty()) throw std::runtime_error("an entry of a dictionary is damaged");
    return data[0] & kLongKey ? 5 + read_at<uint32_t>(data, 1) : 1;
}

Table table_in(std::string_view data) {
    Table table;
    table.start = table.end = after_key(data);
    if (!(data[0] & kHasBlobs)) return table;
    table.number = read_at<uint64_t>(data, table.start);
    table.pieces = read_at<uint32_t>(data, table.start + 8);
    table.blobs = read_at<uint32_t>(data, table.start + 12);
    table.start += 16;
    table.end = table.start + size_t{table.blobs} * 8;
    return table;
}

size_t pieces_of(size_t size) { return std::max<size_t>(1, (size + kPiece - 1) / kPiece); }

}  // namespace

size_t Record::size() const {
    size_t size = head.size();
    for (auto blob : blobs) size += blob.size();
    return size;
}

size_t Stored::size() const {
    size_t size = head.size();
    for (const Blob& blob : blobs)
        for (auto piece : blob) size += piece.size();
    return size;
}

bool is_record(std::string_view name) { return name >= kFirst && name < kBlobs; }

Cursor::Cursor(MDB_txn* txn, MDB_dbi records) {
    check(mdb_cursor_open(txn, records, &cursor_), "LMDB, cursor");
}

bool Cursor::move(MDB_cursor_op how) {
    return check(mdb_cursor_get(cursor_, &key_, &data_, how), "LMDB, cursor");
}

std::optional<std::string_view> Entries::get(std::string_view name) const {
    MDB_val key = to_val(name), data;
    if (!check(mdb_get(txn_, records_, &key, &data), "LMDB, get")) return {};
    return to_text(data);
}

void Entries::set(std::string_view name, std::string_view data) {
    MDB_val key = to_val(name), value = to_val(data);
    check(mdb_put(txn_, records_, &key, &value, 0), "LMDB, put");
}

char* Entries::reserve(std::string_view name, size_t size) {
    MDB_val key = to_val(name), value{size, nullptr};
    check(mdb_put(txn_, records_, &key, &value, MDB_RESERVE), "LMDB, put");
    return static_cast<char*>(value.mv_data);
}

bool Entries::erase(std::string_view name) {
    MDB_val key = to_val(name);
    return check(mdb_del(txn_, records_, &key, nullptr), "LMDB, delete");
}

std::string Entries::name_of(std::string_view key, uint64_t checkpoint) const {
    if (rules_.versioned()) return versioned(key, checkpoint);
    return key.size() <= kLongestName ? std::string(key) : kVersioned + digest(key);
}

// `key`: what it must be, or empty.
Stored Entries::stored(std::string_view key, uint64_t checkpoint, std::string_view data) const {
    Stored found;
    Table table = table_in(data);
    found.flags = static_cast<uint8_t>(data[0]);
    found.checkpoint = checkpoint;
    found.key = key;
    if (found.flags & kLongKey) {
        found.key = data.substr(5, read_at<uint32_t>(data, 1));
        if (!key.empty() && found.key != key) throw std::runtime_error("two keys have the same digest");
    }
    uint32_t piece = 0;
    for (uint32_t i = 0; i < table.blobs; ++i) {
        auto size = read_at<uint64_t>(data, table.start + size_t{i} * 8);
        Blob& blob = found.blobs.emplace_back();
        for (size_t n = pieces_of(size); n--; ++piece) {
            auto memory = get(piece_name(table.number, piece));
            if (!memory) throw std::runtime_error("a piece of a value in a dictionary is missing");
            blob.push_back(*memory);
        }
    }
    found.head = data.substr(std::min(table.end, data.size()));
    return found;
}

bool Entries::is_seen(const Stored& stored, uint64_t checkpoint) const {
    if (stored.flags & kDeleted) return false;
    return !rules_.wait_for_keys || stored.checkpoint == checkpoint || stored.flags & kPersistent;
}

std::optional<Stored> Entries::newest(std::string_view key, uint64_t checkpoint) const {
    if (!rules_.versioned()) return find(key, checkpoint);
    Cursor cursor(txn_, records_);
    std::string first = versioned(key, checkpoint);
    if (!cursor.from(first) || cursor.name().substr(0, kPrefix) != first.substr(0, kPrefix)) return {};
    Stored found = stored(key, version_in(cursor.name()), cursor.data());
    if (found.flags & kDeleted) return {};
    return found;
}

std::optional<Stored> Entries::find(std::string_view key, uint64_t checkpoint) const {
    if (rules_.versioned()) {
        auto found = newest(key, checkpoint);
        return found && is_seen(*found, checkpoint) ? found : std::nullopt;
    }
    auto data = key.size() <= kLongestName ? get(key) : get(name_of(key, checkpoint));
    if (!data) return {};
    return stored(key, 0, *data);
}

Scan::Scan(const Entries& entries, uint64_t checkpoint)
    : entries_(entries), checkpoint_(checkpoint), cursor_(entries.txn_, entries.records_) {}

std::optional<Stored> Scan::next() {
    for (;;) {
        bool more = begun_ ? cursor_.next() : cursor_.from(kFirst);
        begun_ = true;
        if (!more || !is_record(cursor_.name())) return {};
        std::string_view name = cursor_.name();
        if (!entries_.rules_.versioned())
            return entries_.stored(name[0] == kVersioned ? "" : name, 0, cursor_.data());
        uint64_t version = version_in(name);
        if (name.substr(0, kPrefix) == last_ || version > checkpoint_) continue;
        last_ = name.substr(0, kPrefix);
        Stored found = entries_.stored("", version, cursor_.data());
        if (entries_.is_seen(found, checkpoint_)) return found;
    }
}

void Entries::put(std::string_view key, const Record& record, uint64_t checkpoint, uint8_t flags) {
    std::string name = name_of(key, checkpoint);
    int64_t hidden = 0;
    Table before;
    if (auto old = get(name); old && (*old)[0]) {
        if ((*old)[0] & kLongKey && old->substr(5, read_at<uint32_t>(*old, 1)) != key)
            throw std::runtime_error("two keys have the same digest");
        hidden -= (*old)[0] & kBroadcast ? 1 : 0;
        before = table_in(*old);
    }
    size_t size = 1 + record.head.size();
    bool is_long = name.size() != key.size() || rules_.versioned();
    uint32_t pieces = 0;
    uint64_t number = before.number;
    if (is_long) flags |= kLongKey, size += 4 + key.size();
    if (!record.blobs.empty()) {
        flags |= kHasBlobs, size += 16 + record.blobs.size() * 8;
        while (!number)
            if (getrandom(&number, sizeof number, 0) != sizeof number)
                throw std::runtime_error("no random numbers");
        pieces = put_blobs(number, record.blobs);
    }
    hidden += flags & kBroadcast ? 1 : 0;
    if (pieces != before.pieces) {
        hidden += int64_t{pieces} - int64_t{before.pieces};
        drop_blobs(number, pieces, before.pieces);
    }
    char* to = append(reserve(name, size), flags);
    if (is_long) {
        to = append(to, static_cast<uint32_t>(key.size()));
        to = std::copy(key.begin(), key.end(), to);
    }
    if (pieces) {
        to = append(append(append(to, number), pieces), static_cast<uint32_t>(record.blobs.size()));
        for (auto blob : record.blobs) to = append(to, static_cast<uint64_t>(blob.size()));
    }
    std::copy(record.head.begin(), record.head.end(), to);
    if (hidden) hide(hidden);
    if (rules_.versioned()) drop_older(name);
}

// Writes blobs over those with that number, and returns the number of pieces.
uint32_t Entries::put_blobs(uint64_t number, const std::vector<std::string_view>& blobs) {
    uint32_t piece = 0;
    for (auto blob : blobs)
        for (size_t i = 0; i < pieces_of(blob.size()); ++i)
            set(piece_name(number, piece++), blob.substr(i * kPiece, kPiece));
    return piece;
}

void Entries::drop_blobs(uint64_t number, uint32_t first, uint32_t end) {
    for (; first < end; ++first) erase(piece_name(number, first));
}

// Removes an entry and its blobs.
void Entries::drop_entry(std::string_view name) {
    auto data = get(name);
    if (!data) return;
    Table table = table_in(*data);
    int64_t hidden = table.pieces + ((*data)[0] & kBroadcast ? 1 : 0);
    drop_blobs(table.number, 0, table.pieces);
    if (hidden) hide(-hidden);
    erase(name);
}

void Entries::remove(std::string_view key, uint64_t checkpoint) {
    std::string name = name_of(key, checkpoint);
    drop_entry(name);
    if (!rules_.versioned()) return;
    char* to = append(reserve(name, 5 + key.size()), static_cast<uint8_t>(kLongKey | kDeleted));
    std::copy(key.begin(), key.end(), append(to, static_cast<uint32_t>(key.size())));
    drop_older(name);
}

uint64_t Entries::hidden() const {
    auto data = get(kHidden);
    return data ? read_at<uint64_t>(*data, 0) : 0;
}

void Entries::hide(int64_t count) {
    uint64_t before = hidden();
    uint64_t now = (before ? before : 1) + static_cast<uint64_t>(count);
    set(kHidden, {reinterpret_cast<const char*>(&now), sizeof now});
}

uint64_t Entries::behind(uint64_t first, uint64_t end) const {
    std::set<std::pair<std::string, uint64_t>> there, wanted;
    Cursor cursor(txn_, records_);
    for (bool more = cursor.from({&kVersioned, 1}); more && cursor.name()[0] == kVersioned;
         more = cursor.next()) {
        std::string prefix(cursor.name().substr(0, kPrefix));
        uint64_t version = version_in(cursor.name());
        there.emplace(prefix, version);
        if (version >= first && version < end && !(cursor.data()[0] & (kPersistent | kDeleted)))
            wanted.emplace(prefix, version + 1);
    }
    return static_cast<uint64_t>(
        std::count_if(wanted.begin(), wanted.end(), [&](const auto& each) { return !there.count(each); }));
}

// Removes the versions of a key before this one that no checkpoint of the working set shows.
void Entries::drop_older(std::string_view name) {
    std::vector<std::string> unseen;
    {
        Cursor cursor(txn_, records_);
        if (!cursor.from(name)) return;
        bool found = version_in(name) <= rules_.oldest;
        while (cursor.next() && cursor.name().substr(0, kPrefix) == name.substr(0, kPrefix)) {
            if (found)
                unseen.emplace_back(cursor.name());
            else
                found = version_in(cursor.name()) <= rules_.oldest;
        }
    }
    for (const std::string& each : unseen) drop_entry(each);
}

void Entries::drop_unseen() {
    std::vector<std::string> unseen;
    {
        Cursor cursor(txn_, records_);
        std::string last;
        bool found = false;
        for (bool more = cursor.from({&kVersioned, 1}); more && cursor.name()[0] == kVersioned;
             more = cursor.next()) {
            std::string_view name = cursor.name(), data = cursor.data();
            if (name.substr(0, kPrefix) != last) {
                last = name.substr(0, kPrefix);
                found = false;
            }
            uint64_t version = version_in(name);
            if (found || (rules_.wait_for_keys && version < rules_.oldest && !(data[0] & kPersistent))) {
                unseen.emplace_back(name);
            } else if (version <= rules_.oldest) {
                found = true;
                if (data[0] & kDeleted) unseen.emplace_back(name);
            }
        }
    }
    for (const std::string& each : unseen) drop_entry(each);
}

void Entries::drop_all() {
    auto kept = writers();
    check(mdb_drop(txn_, records_, 0), "LMDB, drop");
    for (const auto& [client, checkpoint] : kept) note_writer(client, checkpoint);
}

std::vector<std::pair<std::string, uint64_t>> Entries::writers() const {
    std::vector<std::pair<std::string, uint64_t>> found;
    Cursor cursor(txn_, records_);
    for (bool more = cursor.from(kWriter); more && cursor.name().substr(0, 2) == kWriter;
         more = cursor.next())
        found.emplace_back(cursor.name().substr(2), read_at<uint64_t>(cursor.data(), 0));
    return found;
}

void Entries::note_writer(std::string_view client, std::optional<uint64_t> checkpoint) {
    std::string name(kWriter);
    name += client;
    bool before = get(name).has_value();
    if (checkpoint) {
        uint64_t at = *checkpoint;
        set(name, {reinterpret_cast<const char*>(&at), sizeof at});
    } else if (before) {
        erase(name);
    }
    if (checkpoint.has_value() != before) hide(checkpoint ? 1 : -1);
}

}  // namespace dragon::store
