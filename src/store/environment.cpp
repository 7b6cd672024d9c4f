#include "environment.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <system_error>

namespace dragon::store {

namespace {

constexpr unsigned kReaders = 4096;
constexpr size_t kSpare = 4;
constexpr unsigned kFlags =
    MDB_WRITEMAP | MDB_NOSYNC | MDB_NOMETASYNC | MDB_MAPASYNC | MDB_NOMEMINIT | MDB_NORDAHEAD | MDB_NOTLS;

struct Registry {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<Environment>> open;
};

int generation = 0;

// Never freed: what a child inherits stays as it is.
Registry*& registry() {
    static Registry* known = [] {
        pthread_atfork(nullptr, nullptr, [] {
            ++generation;
            registry() = new Registry;
        });
        return new Registry;
    }();
    return known;
}

// Checks that a folder is this user's and closed to all others, before and after its files are opened by
// name.
class Folder {
  public:
    explicit Folder(const std::string& path)
        : path_(path), fd_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
        if (fd_ < 0 || fstat(fd_, &status_) < 0)
            throw std::system_error(errno, std::generic_category(), path);
        if (status_.st_uid == getuid() && !(status_.st_mode & 077)) return;
        close(fd_);
        refuse(" has to be yours and closed to others, so it is not opened");
    }
    Folder(const Folder&) = delete;
    ~Folder() { close(fd_); }
    void check_again() const {
        struct stat now;
        if (lstat(path_.c_str(), &now) < 0 || now.st_ino != status_.st_ino || now.st_dev != status_.st_dev)
            refuse(" was replaced by another folder while it was opened");
    }

  private:
    [[noreturn]] void refuse(const char* why) const {
        throw std::system_error(EACCES, std::generic_category(), path_ + why);
    }
    const std::string path_;
    int fd_;
    struct stat status_;
};

}  // namespace

bool check(int code, const char* what) {
    if (code == MDB_SUCCESS) return true;
    if (code == MDB_NOTFOUND) return false;
    if (code == MDB_MAP_FULL)
        throw Blocked(Blocked::NoPages, "enough space in total, but fragmented or pinned by an open view()");
    throw std::runtime_error(std::string(what) + ": " + mdb_strerror(code));
}

std::shared_ptr<Environment> Environment::open(const std::string& folder, size_t map_size) {
    Registry& all = *registry();
    for (;; usleep(100)) {
        std::lock_guard lock(all.mutex);
        auto found = all.open.find(folder);
        if (found == all.open.end()) {
            std::shared_ptr<Environment> made(new Environment(folder, map_size), &Environment::close);
            all.open[folder] = made;
            return made;
        }
        if (auto known = found->second.lock()) return known;
        // Another thread is about to close it.
    }
}

Environment::Environment(const std::string& folder, size_t map_size)
    : folder_(folder), generation_(generation) {
    Folder checked(folder);
    check(mdb_env_create(&env_), "LMDB");
    try {
        check(mdb_env_set_mapsize(env_, map_size), "LMDB, size");
        check(mdb_env_set_maxreaders(env_, kReaders), "LMDB, readers");
        int code = mdb_env_open(env_, folder.c_str(), kFlags, 0600);
        if (code > 0) throw std::system_error(code, std::generic_category(), folder);
        check(code, folder.c_str());
        checked.check_again();
        MDB_txn* txn;
        check(mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn), "LMDB");
        int opened = mdb_dbi_open(txn, nullptr, 0, &records_);
        mdb_txn_abort(txn);
        check(opened, "LMDB");
        MDB_stat stat;
        check(mdb_env_stat(env_, &stat), "LMDB");
        page_size_ = stat.ms_psize;
    } catch (...) {
        mdb_env_close(env_);
        throw;
    }
}

bool Environment::is_inherited() const { return generation_ != generation; }

void Environment::close(Environment* environment) {
    if (environment->is_inherited()) return;  // it is the parent's
    Registry& all = *registry();
    std::lock_guard lock(all.mutex);
    all.open.erase(environment->folder_);
    delete environment;
}

Environment::~Environment() {
    for (MDB_txn* txn : spare_) mdb_txn_abort(txn);
    mdb_env_close(env_);
}

int Environment::descriptor() const {
    int fd = -1;
    check(mdb_env_get_fd(env_, &fd), "LMDB");
    return fd;
}

bool Environment::is_read() const {
    bool read = false;
    // A line of a reader ends with the number of the state that it reads, or with "-".
    auto look = [](const char* text, void* found) {
        std::string_view line(text);
        while (!line.empty() && strchr(" \n", line.back())) line.remove_suffix(1);
        if (!line.empty() && isdigit(static_cast<unsigned char>(line.back())))
            *static_cast<bool*>(found) = true;
        return 0;
    };
    mdb_reader_list(env_, look, &read);
    return read;
}

std::shared_ptr<Reading> Environment::pin() {
    auto made = std::make_shared<Reading>(shared_from_this());
    std::lock_guard lock(mutex_);
    auto before = pinned_.lock();
    if (before && before->txn() && mdb_txn_id(before->txn()) == mdb_txn_id(made->txn())) return before;
    pinned_ = made;
    return made;
}

Reading::Reading(std::shared_ptr<Environment> environment) : environment_(std::move(environment)) {
    Environment& e = *environment_;
    {
        std::lock_guard lock(e.mutex_);
        if (!e.spare_.empty()) {
            txn_ = e.spare_.back();
            e.spare_.pop_back();
        }
    }
    int code = txn_ ? mdb_txn_renew(txn_) : mdb_txn_begin(e.env_, nullptr, MDB_RDONLY, &txn_);
    if (code == MDB_SUCCESS) return;
    if (txn_) mdb_txn_abort(txn_);
    check(code, "LMDB, reading");
}

void Reading::end() {
    MDB_txn* txn = std::exchange(txn_, nullptr);
    if (!txn || environment_->is_inherited()) return;
    std::unique_lock lock(environment_->mutex_);
    if (environment_->spare_.size() < kSpare) {
        mdb_txn_reset(txn);
        environment_->spare_.push_back(txn);
    } else {
        mdb_txn_abort(txn);
    }
}

Writing::Writing(std::shared_ptr<Environment> environment) : environment_(std::move(environment)) {
    check(mdb_txn_begin(environment_->get(), nullptr, 0, &txn_), "LMDB, writing");
}

void Writing::commit() { check(mdb_txn_commit(std::exchange(txn_, nullptr)), "LMDB, commit"); }

}  // namespace dragon::store
