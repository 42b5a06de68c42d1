#include "base/error.h"

namespace gradring {

void Failure::raise() const {
  switch (kind) {
    case ErrorKind::kInvalidArgument: throw InvalidArgument(text);
    case ErrorKind::kMismatch: throw Mismatch(text);
    case ErrorKind::kPeerLost: throw PeerLost(rank, text);
    case ErrorKind::kTimedOut: throw TimedOut(text);
    case ErrorKind::kAuthError: throw AuthError(text);
    case ErrorKind::kProtocolError: throw ProtocolError(text);
    case ErrorKind::kClosed: throw Closed(text);
    case ErrorKind::kInterrupted: throw Interrupted(text);
    case ErrorKind::kDeviceError:
    case ErrorKind::kInternalError:
    case ErrorKind::kNone: break;
  }
  throw InternalError(text);
}

Failure Failure::from(const std::exception& error) {
  if (const auto* lost = dynamic_cast<const PeerLost*>(&error))
    return {ErrorKind::kPeerLost, lost->rank, lost->what()};
  if (const auto* known = dynamic_cast<const Error*>(&error))
    return {known->kind(), -1, known->what()};
  return {ErrorKind::kInternalError, -1, error.what()};
}

}  // namespace gradring
