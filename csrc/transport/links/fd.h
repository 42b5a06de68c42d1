// Fd: a file descriptor with one owner. All of ours are known by number, so that a forked child can
// let go of them: a child that held a copy of its parent's sockets would keep them open after the
// parent's death and hide it from the other ranks.
#pragma once

#include <unistd.h>

#include <utility>

namespace gradring::transport {

// Book-keeping behind Fd; callable from any thread.
void note_fd(int fd);
void forget_fd(int fd);
// In a forked child, before anything else runs there: puts /dev/null in the place of every noted
// descriptor. The numbers stay taken, so that destructors of inherited objects close what they
// believe to close. Async-signal-safe.
void let_go_of_fds();

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {
    if (fd_ >= 0) note_fd(fd_);
  }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {  // The caller is its owner now.
    if (fd_ >= 0) forget_fd(fd_);
    return std::exchange(fd_, -1);
  }
  void reset() {
    if (fd_ < 0) return;
    forget_fd(fd_);
    ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace gradring::transport
