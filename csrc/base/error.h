// The error kinds, named by what the caller can do about them (docs/errors.md). Thrown on the
// user's own thread only: the monitor and progress threads turn them into a Failure, a plain value
// that can cross threads and the wire.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/text.h"
#include "base/types.h"

namespace gradring {

// The values are part of the wire format (abort messages): append, never renumber.
enum class ErrorKind : std::uint8_t {
  kNone = 0,
  kInvalidArgument = 1,
  kMismatch = 2,
  kPeerLost = 3,
  kTimedOut = 4,
  kAuthError = 5,
  kProtocolError = 6,
  kDeviceError = 7,
  kClosed = 8,
  kInternalError = 9,
  kInterrupted = 10,
};
std::string_view name(ErrorKind kind);  // "PeerLost", ...: the Python class.

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

  std::string note;  // As in Failure.

 private:
  ErrorKind kind_;
};

// Your call is wrong; nothing was sent.
struct InvalidArgument : Error {
  explicit InvalidArgument(const std::string& text) : Error(ErrorKind::kInvalidArgument, text) {}
};
// Ranks made different calls; the communicator is closed.
struct Mismatch : Error {
  explicit Mismatch(const std::string& text) : Error(ErrorKind::kMismatch, text) {}
};
// A rank died, froze or left; the communicator is closed, the survivors can go on without it.
struct PeerLost : Error {
  PeerLost(Rank lost_rank, const std::string& text)
      : Error(ErrorKind::kPeerLost, text), rank(lost_rank) {}
  Rank rank;
};
// A deadline passed. After a collective the communicator is closed.
struct TimedOut : Error {
  explicit TimedOut(const std::string& text) : Error(ErrorKind::kTimedOut, text) {}
};
// The other end could not prove that it knows the job's secret, or we could not.
struct AuthError : Error {
  explicit AuthError(const std::string& text) : Error(ErrorKind::kAuthError, text) {}
};
// A device said no: an array lies where this build cannot read, a disk is full or fails.
struct DeviceError : Error {
  explicit DeviceError(const std::string& text) : Error(ErrorKind::kDeviceError, text) {}
};
// Bytes that make no sense: another version, or corruption.
struct ProtocolError : Error {
  explicit ProtocolError(const std::string& text) : Error(ErrorKind::kProtocolError, text) {}
};
// Our bug.
struct InternalError : Error {
  explicit InternalError(const std::string& text) : Error(ErrorKind::kInternalError, text) {}
};
// The user's signal handler wants out of a wait (Ctrl-C). The binding turns it into the pending
// Python exception.
struct Interrupted : Error {
  explicit Interrupted(const std::string& text) : Error(ErrorKind::kInterrupted, text) {}
};

// An error as a value.
struct Failure {
  ErrorKind kind = ErrorKind::kNone;
  Rank rank = -1;  // PeerLost: who.
  std::string text;
  std::string note =
      {};  // What helps this process only, such as a file's name. Not sent to others.
  std::shared_ptr<const Failure> cause = {};  // Closed: the first failure. Not sent either.

  explicit operator bool() const { return kind != ErrorKind::kNone; }
  [[noreturn]] void raise() const;  // Throws the class that belongs to `kind`.
  // The inverse; anything unknown is an InternalError.
  static Failure from(const std::exception& error);
};

// Used after a failure or after close(); carries the first failure, if that is what closed it.
struct Closed : Error {
  explicit Closed(const std::string& text, Failure first = {})
      : Error(ErrorKind::kClosed, text), cause(std::move(first)) {}
  Failure cause;
};

}  // namespace gradring

// Blames us, never the caller.
#define GRADRING_ASSERT(condition)                                                         \
  do {                                                                                     \
    if (!(condition))                                                                      \
      throw ::gradring::InternalError(                                                     \
          ::gradring::str("assertion failed: " #condition " at ", __FILE__, ":", __LINE__, \
                          "; this is a bug in gradring, please report it"));               \
  } while (false)
