#include "base/error.h"

namespace gradring {
namespace {

template <typename Kind>
[[noreturn]] void raise_with(Kind error, const std::string& note) {
  error.note = note;
  throw error;
}

}  // namespace

std::string_view name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "InvalidArgument";
    case ErrorKind::kMismatch: return "Mismatch";
    case ErrorKind::kPeerLost: return "PeerLost";
    case ErrorKind::kTimedOut: return "TimedOut";
    case ErrorKind::kAuthError: return "AuthError";
    case ErrorKind::kProtocolError: return "ProtocolError";
    case ErrorKind::kDeviceError: return "DeviceError";
    case ErrorKind::kClosed: return "Closed";
    case ErrorKind::kInternalError:
    case ErrorKind::kInterrupted:
    case ErrorKind::kNone: break;
  }
  return "InternalError";
}

void Failure::raise() const {
  switch (kind) {
    case ErrorKind::kInvalidArgument: raise_with(InvalidArgument(text), note);
    case ErrorKind::kMismatch: raise_with(Mismatch(text), note);
    case ErrorKind::kPeerLost: raise_with(PeerLost(rank, text), note);
    case ErrorKind::kTimedOut: raise_with(TimedOut(text), note);
    case ErrorKind::kAuthError: raise_with(AuthError(text), note);
    case ErrorKind::kProtocolError: raise_with(ProtocolError(text), note);
    case ErrorKind::kClosed: raise_with(Closed(text, cause ? *cause : Failure{}), note);
    case ErrorKind::kInterrupted: raise_with(Interrupted(text), note);
    case ErrorKind::kDeviceError: raise_with(DeviceError(text), note);
    case ErrorKind::kInternalError:
    case ErrorKind::kNone: break;
  }
  raise_with(InternalError(text), note);
}

Failure Failure::from(const std::exception& error) {
  if (const auto* lost = dynamic_cast<const PeerLost*>(&error))
    return {ErrorKind::kPeerLost, lost->rank, lost->what(), lost->note};
  if (const auto* closed = dynamic_cast<const Closed*>(&error); closed != nullptr && closed->cause)
    return {ErrorKind::kClosed, -1, closed->what(), closed->note,
            std::make_shared<const Failure>(closed->cause)};
  if (const auto* known = dynamic_cast<const Error*>(&error))
    return {known->kind(), -1, known->what(), known->note};
  return {ErrorKind::kInternalError, -1, error.what()};
}

}  // namespace gradring
