// How a call into Python survives the end of the interpreter. This file is compiled without exceptions:
// pthread_cleanup_push() then records a place to return to, so that the stack is never unwound past it,
// whichever C++ library and unwinder are linked.
#include "call_python.hpp"

#include <pthread.h>
#include <unistd.h>

namespace dragon::py {

void call_python(void (*f)(void*), void* context) {
    pthread_cleanup_push(
        [](void*) {
            for (;;) pause();
        },
        nullptr);
    f(context);
    pthread_cleanup_pop(0);
}

}  // namespace dragon::py
