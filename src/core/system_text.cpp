#include "system_text.hpp"

namespace dragon {

namespace {

// The length in bytes of the UTF-8 character at the start of the text; 0 if there is no valid one (Unicode
// 15, table 3-7).
size_t length_of_character(std::string_view text) {
    auto byte = [&](size_t i) -> unsigned {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
    };
    auto follows = [&](size_t i, unsigned least = 0x80, unsigned most = 0xbf) {
        return byte(i) >= least && byte(i) <= most;
    };
    unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef)
        return follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
    if (first >= 0xf0 && first <= 0xf4)
        return follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && follows(2) &&
                       follows(3)
                   ? 4
                   : 0;
    return 0;
}

}  // namespace

std::string restored(std::string_view sent) {
    if (sent.empty() || sent[0] != '\0') return std::string(sent);
    std::string bytes;
    for (size_t i = 1; i < sent.size(); ++i) {
        auto byte = static_cast<unsigned char>(sent[i]);
        // Each character stands for the byte of its Latin-1 code; in UTF-8 those above 127 are two bytes.
        if (byte >= 0xc0 && i + 1 < sent.size())
            byte = static_cast<unsigned char>((byte & 3) << 6 | (sent[++i] & 0x3f));
        bytes += static_cast<char>(byte);
    }
    return bytes;
}

std::string readable(std::string_view text) {
    std::string found;
    while (!text.empty()) {
        size_t length = length_of_character(text);
        if (length)
            found += text.substr(0, length);
        else
            found += '?';
        text.remove_prefix(length ? length : 1);
    }
    return found;
}

}  // namespace dragon
