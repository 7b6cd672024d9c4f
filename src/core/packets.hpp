// Sends bytes together with file descriptors over a Unix socket.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

namespace dragon {

// Sends both parts as one packet. Returns the result of sendmsg() and keeps its errno.
inline ssize_t send_packet(int socket, std::string_view head, std::string_view data,
                           const std::vector<int>& descriptors) {
    iovec parts[] = {{const_cast<char*>(head.data()), head.size()},
                     {const_cast<char*>(data.data()), data.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    size_t bytes = descriptors.size() * sizeof(int);
    std::vector<char> control(descriptors.empty() ? 0 : CMSG_SPACE(bytes));
    if (!descriptors.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(c), descriptors.data(), bytes);
    }
    ssize_t sent;
    while ((sent = sendmsg(socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR);
    return sent;
}

}  // namespace dragon
