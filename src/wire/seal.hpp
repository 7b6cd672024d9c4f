// Authenticated encryption of one direction of a connection: AES-256-GCM of OpenSSL's libcrypto, which is
// found when it is first needed. So a build needs no headers of it, and wheels carry no copy.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace dragon::wire {

inline constexpr size_t kKey = 32, kTag = 16;  // bytes

// The records of one direction: the n-th is sealed with nonce n, so a key must be used for nothing else.
class Seal {
  public:
    virtual ~Seal() = default;
    // Writes size + kTag bytes.
    virtual void seal(char* out, const char* in, size_t size) = 0;
    // `size` includes the tag. Returns false if the record is not the one that was sealed.
    virtual bool open(char* out, const char* in, size_t size) = 0;
};

// Whether libcrypto was found, in this process or among the libraries of the system.
bool find_crypto();
// Makes a Seal. Replaced by the bindings where libcrypto is not found.
extern std::unique_ptr<Seal> (*make_seal)(std::string_view key, bool seals);

}  // namespace dragon::wire
