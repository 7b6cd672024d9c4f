// Converts between system paths, which are bytes, and the text of messages, which is UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace dragon {

// Inverts dragon.infrastructure.system.sendable(): returns the bytes that it was given.
std::string restored(std::string_view sent);
// Returns the text with a question mark for each byte that is not part of a valid UTF-8 character.
std::string readable(std::string_view text);

}  // namespace dragon
