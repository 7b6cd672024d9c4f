// Paths as a system has them, which are bytes, beside what messages take, which is UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace dragon {

// What dragon.infrastructure.system_text.sendable() was given.
std::string restored(std::string_view sent);
// The text with a question mark for each byte that is no part of a character in UTF-8.
std::string readable(std::string_view text);

}  // namespace dragon
