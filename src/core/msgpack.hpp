// The parts of MessagePack (msgpack.org) that the processes of a node use to communicate, read and written in
// place.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dragon {

struct Malformed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Reads values one after another. Throws Malformed if the next value is of another kind or the data end too
// early.
class MsgpackReader {
  public:
    explicit MsgpackReader(std::string_view data) : data_(data) {}

    uint32_t map() { return container(0x80, 0xde, "a map"); }       // its number of pairs, which follow
    uint32_t array() { return container(0x90, 0xdc, "an array"); }  // its number of values, which follow
    std::string_view text() {                                       // or bytes
        uint8_t kind = byte();
        if (kind >= 0xa0 && kind <= 0xbf) return take(kind & 0x1f);
        if (kind >= 0xd9 && kind <= 0xdb) return take(big_endian(1u << (kind - 0xd9)));
        if (kind >= 0xc4 && kind <= 0xc6) return take(big_endian(1u << (kind - 0xc4)));
        throw Malformed("text was expected");
    }
    uint64_t number() {  // a negative number in two's complement
        uint8_t kind = byte();
        if (kind <= 0x7f) return kind;
        if (kind >= 0xe0) return sign_extended(kind, 1);
        if (kind >= 0xcc && kind <= 0xcf) return big_endian(1u << (kind - 0xcc));
        if (kind >= 0xd0 && kind <= 0xd3) {
            size_t size = 1u << (kind - 0xd0);
            return sign_extended(big_endian(size), size);
        }
        throw Malformed("a number was expected");
    }
    bool nil() {  // consumes it, if it is nil
        if (data_.empty() || static_cast<uint8_t>(data_[0]) != 0xc0) return false;
        byte();
        return true;
    }
    bool truth() {
        uint8_t kind = byte();
        if (kind != 0xc2 && kind != 0xc3) throw Malformed("true or false was expected");
        return kind == 0xc3;
    }
    std::string_view any() {  // the next value, encoded
        std::string_view from = data_;
        for (uint64_t left = 1; left; --left) left += skip_head();
        return from.substr(0, from.size() - data_.size());
    }

  private:
    std::string_view take(uint64_t size) {
        if (size > data_.size()) throw Malformed("it ends too early");
        std::string_view taken = data_.substr(0, size);
        data_.remove_prefix(size);
        return taken;
    }
    uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
    uint64_t big_endian(size_t size) {
        uint64_t value = 0;
        for (char c : take(size)) value = value << 8 | static_cast<uint8_t>(c);
        return value;
    }
    static uint64_t sign_extended(uint64_t value, size_t size) {
        unsigned unused = 64 - 8 * static_cast<unsigned>(size);
        return static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
    }
    uint32_t container(uint8_t small, uint8_t large, const char* what) {
        uint8_t kind = byte();
        if ((kind & 0xf0) == small) return kind & 0x0f;
        if (kind == large) return static_cast<uint32_t>(big_endian(2));
        if (kind == large + 1) return static_cast<uint32_t>(big_endian(4));
        throw Malformed(std::string(what) + " was expected");
    }
    // Consumes a value except for the values inside it; returns the number of these.
    uint64_t skip_head() {
        uint8_t kind = byte();
        if (kind <= 0x7f || kind >= 0xe0 || kind == 0xc0 || kind == 0xc2 || kind == 0xc3) return 0;
        if (kind <= 0x8f) return 2 * (kind & 0x0fu);
        if (kind <= 0x9f) return kind & 0x0fu;
        if (kind <= 0xbf) return take(kind & 0x1f), 0;
        if (kind >= 0xc4 && kind <= 0xc6) return take(big_endian(1u << (kind - 0xc4))), 0;
        if (kind >= 0xc7 && kind <= 0xc9) return take(big_endian(1u << (kind - 0xc7)) + 1), 0;
        if (kind == 0xca || kind == 0xcb) return take(kind == 0xca ? 4 : 8), 0;
        if (kind >= 0xcc && kind <= 0xcf) return take(1u << (kind - 0xcc)), 0;
        if (kind >= 0xd0 && kind <= 0xd3) return take(1u << (kind - 0xd0)), 0;
        if (kind >= 0xd4 && kind <= 0xd8) return take((1u << (kind - 0xd4)) + 1), 0;
        if (kind >= 0xd9 && kind <= 0xdb) return take(big_endian(1u << (kind - 0xd9))), 0;
        if (kind == 0xdc || kind == 0xdd) return big_endian(kind == 0xdc ? 2 : 4);
        if (kind == 0xde || kind == 0xdf) return 2 * big_endian(kind == 0xde ? 2 : 4);
        throw Malformed("no such value");
    }

    std::string_view data_;
};

// Appends values to a string.
class MsgpackWriter {
  public:
    explicit MsgpackWriter(std::string& out) : out_(out) {}

    MsgpackWriter& map(uint32_t pairs) {
        if (pairs <= 15) return head(static_cast<uint8_t>(0x80 | pairs));
        return head(0xdf).big_endian(pairs, 4);
    }
    MsgpackWriter& array(uint32_t values) {
        if (values <= 15) return head(static_cast<uint8_t>(0x90 | values));
        return head(0xdd).big_endian(values, 4);
    }
    MsgpackWriter& nil() { return head(0xc0); }
    MsgpackWriter& truth(bool value) { return head(value ? 0xc3 : 0xc2); }
    MsgpackWriter& bytes(std::string_view bytes) {
        head(0xc6).big_endian(bytes.size(), 4);
        out_ += bytes;
        return *this;
    }
    MsgpackWriter& text(std::string_view text) {
        text.size() <= 31 ? head(static_cast<uint8_t>(0xa0 | text.size()))
                          : head(0xdb).big_endian(text.size(), 4);
        out_ += text;
        return *this;
    }
    MsgpackWriter& raw(std::string_view encoded) {
        out_ += encoded;
        return *this;
    }
    MsgpackWriter& number(uint64_t value) { return head(0xcf).big_endian(value, 8); }
    MsgpackWriter& signed_number(int64_t value) {
        return head(0xd3).big_endian(static_cast<uint64_t>(value), 8);
    }

  private:
    MsgpackWriter& head(uint8_t kind) {
        out_ += static_cast<char>(kind);
        return *this;
    }
    MsgpackWriter& big_endian(uint64_t value, int size) {
        for (int i = size - 1; i >= 0; --i) out_ += static_cast<char>(value >> 8 * i);
        return *this;
    }

    std::string& out_;
};

}  // namespace dragon
