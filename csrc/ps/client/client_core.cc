#include "ps/client/client_core.h"

#include <algorithm>
#include <new>
#include <utility>

namespace gradring::ps {

namespace {

Time deadline_of(const Call& call, const Session& session) {
  const Call::State& state = call.state();
  const Time since =
      call.ends_on_time() ? state.begun : std::max(state.begun, session.progress_at());
  return since + state.timeout;
}

}  // namespace

ClientCore::ClientCore(const ClientCoreOptions& options) {
  const auto shards = static_cast<std::uint32_t>(options.addresses.size());
  sessions_.reserve(shards);
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    SessionOptions session;
    session.shard = shard;
    session.shards = shards;
    session.address = str("shard ", shard, " (", options.addresses[shard], ")");
    session.hello = options.hello;
    session.answer_time = options.answer_time;
    session.flight_bytes = options.flight_bytes;
    sessions_.emplace_back(session);
  }
}

void ClientCore::submit(const std::shared_ptr<Call>& call, Millis timeout, Time now) {
  Call::State& state = call->state();
  state.timeout = timeout;
  state.begun = now;
  const std::size_t parts = call->parts().size();
  calls_.push_back(call);
  try {
    state.tail.clear();
    state.tail.reserve(sessions_.size());
    for (std::size_t at = 0; at < parts; ++at) sessions_[call->parts()[at].shard].add(call, at);
  } catch (...) {
    // A number that is never sent would keep all that come after it from being done.
    for (Session& session : sessions_) session.take_back(*call);
    calls_.pop_back();
    throw;
  }
  // Where this call has no part, what came before counts: a cut that has this call and only half of
  // an earlier one would not be found out otherwise.
  for (const Session& session : sessions_) state.tail.push_back(session.last_seq());
  if (parts == 0) finish_answered();
  check_sessions();
}

void ClientCore::refuse(Call& call, Failure failure) {
  call.note_failure(std::move(failure));
  cancel(call, {});
  if (call.is_done()) return;
  call.finish();
  ++finished_;
}

void ClientCore::receive(std::uint32_t shard, const wire::PsHeader& answer,
                         std::span<const std::byte> payload, Time now) {
  sessions_[shard].receive(answer, payload, now);
  finish_answered();
  if (sessions_[shard].failure()) check_sessions();
}

void ClientCore::finish_answered() {
  for (std::size_t at = 0; at < calls_.size();) {
    Call& call = *calls_[at];
    if (call.state().answered < call.parts().size()) {
      ++at;
      continue;
    }
    const std::shared_ptr<Call> keep = calls_[at];
    calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(at));
    call.finish();
    ++finished_;
  }
}

void ClientCore::cancel(Call& call, Failure failure) {
  const auto at = std::find_if(calls_.begin(), calls_.end(),
                               [&](const auto& other) { return other.get() == &call; });
  if (at == calls_.end()) return;
  const std::shared_ptr<Call> keep = *at;
  calls_.erase(at);
  try {
    failure.text += describe_missing(call);
  } catch (const std::bad_alloc&) {
    // Who waits hears the rest.
  }
  for (Session& session : sessions_) session.drop(call);
  call.note_failure(std::move(failure));
  call.finish();
  ++finished_;
}

void ClientCore::cancel_all(const Failure& failure) {
  while (!calls_.empty()) cancel(*calls_.front(), failure);
}

void ClientCore::give_up(std::uint32_t shard, const Failure& failure) {
  sessions_[shard].fail(failure.kind, failure.text);
  check_sessions();
}

// A shard that is lost for good fails every call that still waits for it.
void ClientCore::check_sessions() {
  for (const Session& session : sessions_) {
    if (!session.failure()) continue;
    const std::vector<std::shared_ptr<Call>> calls = calls_;
    for (const auto& call : calls) {
      const bool is_hit =
          std::any_of(call->parts().begin(), call->parts().end(), [&](const Part& part) {
            return !part.is_answered && &sessions_[part.shard] == &session;
          });
      if (!is_hit) continue;
      Failure failure = session.failure();
      failure.text = str(call->what(), ", ", session.address(), ": ", failure.text);
      cancel(*call, failure);
    }
  }
}

void ClientCore::tick(Time now) {
  for (Session& session : sessions_) session.tick(now);
  const std::vector<std::shared_ptr<Call>> calls = calls_;
  for (const auto& call : calls) {
    const Call::State& state = call->state();
    for (const Part& part : call->parts()) {
      if (part.is_answered) continue;
      const Session& session = sessions_[part.shard];
      if (now < deadline_of(*call, session)) continue;
      std::string text = str(call->what(), ": ", session.address(), " made no progress for ",
                             state.timeout.count(), " ms");
      if (!session.is_connected()) text += str(" (no connection: ", session.trouble(), ")");
      cancel(*call, {ErrorKind::kTimedOut, -1, text});
      break;
    }
  }
}

Time ClientCore::next_tick() const {
  Time next = Time::max();
  for (const Session& session : sessions_) next = std::min(next, session.next_tick());
  for (const auto& call : calls_) {
    for (const Part& part : call->parts())
      if (!part.is_answered) next = std::min(next, deadline_of(*call, sessions_[part.shard]));
  }
  return next;
}

Time ClientCore::progress_of(const Call& call) const {
  Time slowest = Time::max();
  for (const Part& part : call.parts())
    if (!part.is_answered) slowest = std::min(slowest, sessions_[part.shard].progress_at());
  return slowest;
}

// What a caller has to know about a call that is given up: which changes may or may not have
// happened, exactly.
std::string ClientCore::describe_missing(const Call& call) const {
  const bool is_change = std::any_of(call.parts().begin(), call.parts().end(), [](const Part& p) {
    return wire::is_numbered(p.header.type);
  });
  std::string text =
      str("; ", call.state().answered, " of ", call.parts().size(), " requests were answered");
  if (!is_change) return text;
  text += "; without acknowledgement, so perhaps done and perhaps not:";
  for (std::uint32_t shard = 0; shard < shards(); ++shard) {
    std::uint64_t missing = 0;
    std::uint64_t rows = 0;
    std::uint64_t parts = 0;
    for (const Part& part : call.parts()) {
      if (part.shard != shard || !wire::is_numbered(part.header.type)) continue;
      ++parts;
      if (part.is_answered) continue;
      ++missing;
      rows += part.rows;
    }
    if (missing == 0) continue;
    const std::uint64_t last = call.state().tail[shard];
    text += str(" ", sessions_[shard].address(), ": ", missing, " of ", parts, " changes");
    // Answers come in order, so that what is missing is the end.
    text += missing == 1 ? str(" (number ", last, ")")
                         : str(" (numbers ", last - missing + 1, " to ", last, ")");
    if (rows > 0) text += str(", ", rows, " rows");
    text += ";";
  }
  text += " every one of them is done at most once";
  return text;
}

}  // namespace gradring::ps
