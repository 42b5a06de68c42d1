#include "ps/client/dialer.h"

#include <unistd.h>

#include <system_error>
#include <utility>

namespace gradring::ps {

Dialer::Dialer(std::vector<std::string> addresses, transport::Credentials credentials,
               transport::TransportMode mode, int wake)
    : addresses_(std::move(addresses)),
      credentials_(std::move(credentials)),
      mode_(mode),
      wake_(wake),
      attempts_(addresses_.size()) {}

Dialer::~Dialer() {
  for (const auto& attempt : attempts_)
    if (attempt && attempt->thread.joinable()) attempt->thread.join();
}

bool Dialer::begin(std::uint32_t shard) {
  if (attempts_[shard]) return false;
  auto attempt = std::make_unique<Attempt>();
  Attempt& begun = *attempt;
  try {
    begun.thread = std::thread([this, shard, &begun] { dial(shard, begun); });
  } catch (const std::system_error& error) {
    begun.outcome.failure = {ErrorKind::kPeerLost, -1, str("no thread to connect: ", error.what())};
    begun.is_over.store(true);
  }
  attempts_[shard] = std::move(attempt);
  return true;
}

void Dialer::dial(std::uint32_t shard, Attempt& attempt) const {
  try {
    attempt.outcome.link =
        dial_shard(addresses_[shard], credentials_, shard, mode_, Clock::now() + kTime);
  } catch (const std::exception& error) {
    attempt.outcome.failure = Failure::from(error);
  }
  attempt.is_over.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

std::optional<Dialer::Outcome> Dialer::take(std::uint32_t shard) {
  if (!attempts_[shard] || !attempts_[shard]->is_over.load(std::memory_order_acquire)) return {};
  const auto attempt = std::move(attempts_[shard]);
  if (attempt->thread.joinable()) attempt->thread.join();
  return std::move(attempt->outcome);
}

}  // namespace gradring::ps
