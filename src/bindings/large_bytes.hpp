// Bytes objects that may be large.
#pragma once

#include "common.hpp"

namespace dragon::py {

// A new reference to a bytes object that is still to be filled, or a null pointer and an error. A large one
// asks for huge pages: the kernel takes longer to hand out small ones than it takes to copy what goes into
// them.
PyObject* new_bytes(Py_ssize_t size);

// From so many bytes on copying is done without the GIL.
inline constexpr size_t kCopyWithoutGil = 256 * 1024;

// memcpy(), without the GIL where that takes long.
void copy(void* to, const void* from, size_t size);

void bind_large_bytes(nb::module_& m);

}  // namespace dragon::py
