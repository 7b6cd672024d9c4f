#include "seal.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace dragon::wire {

namespace {

// The part of OpenSSL's interface that is used, which is the same from 1.1 on. Declared here, as its headers
// are often not installed.
struct Crypto {
    void* (*new_context)();
    void (*free_context)(void*);
    const void* (*aes_256_gcm)();
    int (*init)(void*, const void*, void*, const unsigned char*, const unsigned char*, int);
    int (*update)(void*, unsigned char*, int*, const unsigned char*, int);
    int (*final)(void*, unsigned char*, int*);
    int (*control)(void*, int, int, void*);
};
constexpr int kGetTag = 0x10, kSetTag = 0x11;

Crypto crypto{};

bool load(void* library) {
    auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        return function != nullptr;
    };
    Crypto c;
    bool found = find(c.new_context, "EVP_CIPHER_CTX_new") && find(c.free_context, "EVP_CIPHER_CTX_free") &&
                 find(c.aes_256_gcm, "EVP_aes_256_gcm") && find(c.init, "EVP_CipherInit_ex") &&
                 find(c.update, "EVP_CipherUpdate") && find(c.final, "EVP_CipherFinal_ex") &&
                 find(c.control, "EVP_CIPHER_CTX_ctrl");
    if (found) crypto = c;
    return found;
}

class AesGcm : public Seal {
  public:
    AesGcm(std::string_view key, bool seals) : context_(crypto.new_context()), seals_(seals) {
        auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
        if (!context_ || !crypto.init(context_, crypto.aes_256_gcm(), nullptr, bytes, nullptr, seals))
            throw std::runtime_error("AES-256-GCM of libcrypto cannot be used");
    }
    ~AesGcm() override { crypto.free_context(context_); }

    void seal(char* out, const char* in, size_t size) override {
        bool done = begin() && update(out, in, size) && end(out + size) &&
                    crypto.control(context_, kGetTag, kTag, out + size);
        if (!done) throw std::runtime_error("libcrypto cannot encrypt");
    }
    bool open(char* out, const char* in, size_t size) override {
        if (size < kTag || !begin() || !update(out, in, size - kTag)) return false;
        char rest[kTag];
        return crypto.control(context_, kSetTag, kTag, const_cast<char*>(in) + size - kTag) && end(rest);
    }

  private:
    bool begin() {
        unsigned char nonce[12] = {};
        memcpy(nonce, &++number_, sizeof number_);
        return crypto.init(context_, nullptr, nullptr, nullptr, nonce, seals_);
    }
    bool update(char* out, const char* in, size_t size) {
        int length;
        return crypto.update(context_, reinterpret_cast<unsigned char*>(out), &length,
                             reinterpret_cast<const unsigned char*>(in), static_cast<int>(size));
    }
    bool end(char* out) {
        int length;
        return crypto.final(context_, reinterpret_cast<unsigned char*>(out), &length) > 0;
    }

    void* context_;
    bool seals_;
    uint64_t number_ = 0;
};

}  // namespace

bool find_crypto() {
    if (crypto.init) return true;
    if (load(RTLD_DEFAULT)) return true;
    // First a copy that Python's own modules have loaded, so that there are not two.
    for (int flags : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY})
        for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"})
            if (void* library = dlopen(name, flags); library && load(library)) return true;
    return false;
}

std::unique_ptr<Seal> (*make_seal)(std::string_view, bool) = [](std::string_view key, bool seals) {
    if (!find_crypto()) throw std::runtime_error("no libcrypto of OpenSSL 1.1 or later was found");
    return std::unique_ptr<Seal>(new AesGcm(key, seals));
};

}  // namespace dragon::wire
