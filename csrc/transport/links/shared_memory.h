// SharedMemory: an anonymous memory file (memfd) mapped into this process. It has no name in any
// file system: it is passed by descriptor to a process that proved itself, does not count against
// /dev/shm, and vanishes with its last user.
#pragma once

#include <cstddef>

#include "transport/links/fd.h"

namespace gradring::transport {

class SharedMemory {
 public:
  static SharedMemory create(std::size_t bytes);  // Zeroed, sealed against shrinking.
  static SharedMemory attach(
      Fd fd, std::size_t bytes);  // Throws ProtocolError if the file is smaller or not sealed.

  // Whether the host has so many bytes, swap included, and this process may map them. Of what it
  // says yes to there may still be too little left.
  static bool is_possible(std::size_t bytes);

  static std::size_t page_bytes();  // Of this host's kernel: 4096, on some ARM machines 65536.

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  void forget_fd() { fd_.reset(); }  // Once everybody has it: the mapping stays.
  // Has the kernel give the pages of these bytes now, at once, and not one by one as they are first
  // written. Only advice: kernels before 5.14 go on one by one.
  void take_pages(const std::byte* begin, std::size_t bytes) const;
  // These bytes, and what shares a page with them, stay what they are here and are this process's
  // own from now on: what others write there does not show, nor what is written here to others.
  // Takes memory for them. What threads write meanwhile is kept. False where it cannot be, for want
  // of memory: then some of them may still be shared. While the descriptor is there.
  bool detach(const std::byte* begin, std::size_t bytes) const;

 private:
  struct Pages {
    std::size_t first;  // Where they begin, in bytes.
    std::size_t bytes;
  };

  SharedMemory(Fd fd, std::byte* data, std::size_t bytes)
      : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  Pages pages_of(const std::byte* begin, std::size_t bytes) const;
  void unmap();
  Fd fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace gradring::transport
