// Communicator::grow: its ranks, and those who wait in the lobby of the first one, meet anew. Then
// either all of them have the larger communicator, or none has.
#include <algorithm>
#include <array>
#include <optional>

#include "base/config.h"
#include "base/error.h"
#include "base/log.h"
#include "collectives/communicator/communicator.h"
#include "transport/joining/control_frames.h"
#include "transport/joining/newcomer.h"
#include "transport/links/interrupts.h"

namespace gradring::collectives {
namespace {

using transport::Arrival;
using transport::NotMet;

constexpr Millis kLetterTime{1000};  // For a few bytes to who waits for them.

// What a rank tells of its try.
constexpr std::int64_t kMet = 0;
constexpr std::int64_t kNotMet = 1;  // Of rank 0: for a newcomer, so that the others try again.
constexpr std::int64_t kFailed = 2;  // And the kind of error behind it.

std::int64_t verdict_of(ErrorKind kind) {
  return kFailed + static_cast<std::int64_t>(kind);
}

// One try, as one rank sees it. Newcomers that were not taken go back to the lobby with it.
class Try {
 public:
  Try(transport::World& world, const transport::Group& group)
      : world_(world), group_(group), is_first_(world.rank() == group.members.front()) {}
  ~Try() { let_newcomers_go(); }
  Try(const Try&) = delete;
  Try& operator=(const Try&) = delete;

  // On rank 0: who comes along, and where all meet. The others hear of it.
  struct Plan {
    std::int64_t newcomers = 0;
    std::int64_t port = 0;  // 0: rank 0 cannot listen.
  };
  Plan plan(Time deadline);
  // Throws Interrupted.
  void meet(const Plan& plan, Millis patience);
  std::int64_t verdict();
  const Failure& failure() const { return failure_; }
  bool has_met() const { return made_ != nullptr; }
  std::shared_ptr<Communicator> take();

 private:
  std::size_t old_size() const { return group_.members.size(); }
  std::string describe_newcomer(std::size_t index) const;
  void invite(const transport::JoinOptions& options);
  void look_around() const;
  void let_newcomers_go();
  bool is_missing(std::size_t index) const;

  transport::World& world_;
  const transport::Group& group_;
  bool is_first_;
  transport::Fd listener_;
  std::vector<Arrival> newcomers_;
  std::shared_ptr<Communicator> made_;
  std::optional<NotMet> not_met_;
  Failure failure_;
};

Try::Plan Try::plan(Time deadline) {
  if (!is_first_ || Clock::now() >= deadline) return {};
  const std::size_t room =
      limits::kWorldSize - std::min<std::size_t>(limits::kWorldSize, old_size());
  newcomers_ = world_.lobby()->take(std::min(world_.lobby()->count(), room));
  if (newcomers_.empty()) return {};
  Plan plan{static_cast<std::int64_t>(newcomers_.size()), 0};
  try {
    listener_ = world_.listen_beside();
    plan.port = transport::local_port(listener_.get());
  } catch (const Error& error) {
    failure_ = Failure::from(error);
  }
  return plan;
}

void Try::meet(const Plan& plan, Millis patience) {
  if (plan.port == 0) return;
  const Rank first = group_.members.front();
  transport::JoinOptions options = world_.options_to_grow(first, static_cast<int>(plan.port));
  const auto& members = group_.members;
  options.rank =
      static_cast<Rank>(std::find(members.begin(), members.end(), world_.rank()) - members.begin());
  options.world_size = static_cast<Rank>(old_size() + static_cast<std::size_t>(plan.newcomers));
  // Nobody goes before rank 0 has given up: it would seem to be the one that is missing.
  options.growth = transport::Growth{.patience = 2 * patience, .lobby = nullptr};
  options.check_interrupt = [this] { look_around(); };
  if (is_first_) {
    invite(options);
    options.growth->patience = patience;
    options.growth->lobby = world_.lobby();
    options.growth->meeting_point = world_.meeting_point(first);
    options.listen_fd = listener_.release();
  }
  try {
    made_ = Communicator::join(options);
  } catch (const Interrupted&) {
    throw;
  } catch (const NotMet& error) {
    not_met_ = error;
  } catch (const PeerLost& error) {
    not_met_.emplace(error.what(), std::vector<Rank>{});
  } catch (const TimedOut& error) {
    not_met_.emplace(error.what(), std::vector<Rank>{});
  } catch (const std::exception& error) {
    failure_ = Failure::from(error);
  }
}

void Try::invite(const transport::JoinOptions& options) {
  for (std::size_t i = 0; i < newcomers_.size(); ++i) {
    const wire::Invitation invitation{
        static_cast<Rank>(old_size() + i),
        static_cast<std::uint32_t>(options.world_size),
        static_cast<std::uint32_t>(options.rendezvous.port),
        options.mode,
        world_.member(world_.rank()).host_key,
        static_cast<std::uint64_t>(options.growth->patience.count()),
        static_cast<std::uint64_t>(options.timeout.count()),
        static_cast<std::uint64_t>(options.heartbeat_timeout.count())};
    try {
      transport::send_frame(newcomers_[i].connection, invitation, Clock::now() + kLetterTime);
    } catch (const Error&) {
      // It has gone, or is frozen: it will not come.
    }
  }
}

// While the others are waited for.
void Try::look_around() const {
  transport::run_interrupt_check();
  if (group_.is_failed()) group_.failure().raise();
  for (std::size_t i = 0; i < newcomers_.size(); ++i)
    if (transport::has_hung_up(newcomers_[i].connection.get()))
      throw NotMet(str(describe_newcomer(i), " has gone"), {static_cast<Rank>(old_size() + i)});
}

std::string Try::describe_newcomer(std::size_t index) const {
  return str("the newcomer from ", transport::peer_text(newcomers_[index].connection.get()));
}

bool Try::is_missing(std::size_t index) const {
  const auto rank = static_cast<Rank>(old_size() + index);
  return not_met_ && std::count(not_met_->missing.begin(), not_met_->missing.end(), rank) > 0;
}

std::int64_t Try::verdict() {
  if (failure_) return verdict_of(failure_.kind);
  if (!not_met_) return kMet;
  if (!is_first_) return kNotMet;
  std::string who;
  for (std::size_t i = 0; i < newcomers_.size(); ++i)
    if (is_missing(i)) who += str(who.empty() ? "" : ", ", describe_newcomer(i));
  const auto is_old = [&](Rank rank) { return rank < static_cast<Rank>(old_size()); };
  const auto& missing = not_met_->missing;
  if (!who.empty() && std::none_of(missing.begin(), missing.end(), is_old)) {
    log_warning(world_.rank(), str("grow: goes on without ", who,
                                   ", which was invited and did not "
                                   "come to the meeting"));
    return kNotMet;
  }
  failure_ = {ErrorKind::kTimedOut, -1,
              str("grow: ", not_met_->what(), who.empty() ? "" : ": ", who)};
  return verdict_of(failure_.kind);
}

std::shared_ptr<Communicator> Try::take() {
  for (Arrival& newcomer : std::exchange(newcomers_, {})) {
    try {
      transport::send_frame(newcomer.connection, wire::Grown{true}, Clock::now() + kLetterTime);
    } catch (const Error&) {
      // It has died since, which the new world finds out.
    }
  }
  return std::exchange(made_, nullptr);
}

void Try::let_newcomers_go() {
  made_.reset();
  std::vector<Arrival> waiting;
  for (std::size_t i = 0; i < newcomers_.size(); ++i) {
    const wire::Message word =
        is_missing(i) ? wire::Message(wire::Refused{"this process was invited, and did not come "
                                                    "to the meeting in time; can it reach all "
                                                    "ports of that host?",
                                                    false})
                      : wire::Message(wire::Grown{false});
    try {
      transport::send_frame(newcomers_[i].connection, word, Clock::now() + kLetterTime);
      if (!is_missing(i)) waiting.push_back(std::move(newcomers_[i]));
    } catch (const Error&) {
      // It has gone.
    }
  }
  if (!waiting.empty()) world_.lobby()->put_back(std::move(waiting));
}

}  // namespace

std::shared_ptr<Communicator> Communicator::join_running(const transport::JoinOptions& options) {
  transport::Newcomer newcomer(options);
  while (true) {
    const transport::JoinOptions invited = newcomer.await_invitation();
    std::shared_ptr<Communicator> made;
    try {
      made = join(invited);
    } catch (const PeerLost&) {
      // Another one did not come: all try once more.
    } catch (const TimedOut&) {
      // The same, unless it is this one that did not come; then it is told so.
    }
    if (newcomer.is_taken(made != nullptr) && made) return made;
  }
}

std::string Communicator::meeting_point() const {
  return can_grow_ ? world_->meeting_point(group_->members.front()) : "";
}

void Communicator::share_growth(OpKind op, std::span<std::int64_t> values, Millis timeout) {
  Operation operation;
  operation.request.op = op;
  operation.request.dtype = DType::kInt64;
  operation.request.count = values.size();
  operation.step_of = StepOf::kGrow;
  const auto bytes = std::as_writable_bytes(values);
  const bool is_gather = op == OpKind::kAllGather;
  operation.input =
      bytes.data() + (is_gather ? static_cast<std::size_t>(rank_) * sizeof(std::int64_t) : 0);
  operation.output = bytes.data();
  run(operation, timeout);
}

std::shared_ptr<Communicator> Communicator::grow(Millis timeout) {
  if (!can_grow_)
    throw InvalidArgument(
        "grow: newcomers join what init() returned, or what shrink() and grow() made of it, and "
        "not a group of its ranks; grow that, and split it anew");
  world_->check_process();
  if (!world_->lobby() && !group_->is_failed()) return shared_from_this();  // A world of one.
  const Time deadline = Clock::now() + timeout;
  const Millis patience = std::min(timeout, world_->heartbeat_timeout());
  while (true) {
    Try one(*world_, *group_);
    // In the end newcomers that fail, and are back in time for each try, are left for a later call.
    const Try::Plan mine = one.plan(deadline);
    std::array<std::int64_t, 2> told{mine.newcomers, mine.port};
    share_growth(OpKind::kBroadcast, told, timeout);
    if (told[0] == 0) return shared_from_this();
    std::vector<std::int64_t> verdicts(static_cast<std::size_t>(world_size()));
    // A rank that is late is waited for as in any call, and not for the meeting's patience alone.
    share_growth(OpKind::kAllGather, verdicts, timeout);
    try {
      one.meet({told[0], told[1]}, patience);
    } catch (const Interrupted&) {
      find_cause(*world_, *group_, "grow", 0, std::current_exception(), "", timeout).raise();
    }
    verdicts[static_cast<std::size_t>(rank_)] = one.verdict();
    try {
      share_growth(OpKind::kAllGather, verdicts, timeout + patience);
    } catch (const PeerLost&) {
      // Rank 0 tells all of the meeting when everybody has come: the others have met as well, and
      // find out in the larger world who is lost.
      if (!one.has_met()) throw;
      return one.take();
    }
    if (!has_grown(verdicts, one.failure())) continue;
    group_->fail(
        {ErrorKind::kClosed, -1, "this communicator has grown: use the one that grow() returned"});
    return one.take();
  }
}

// Whether all have met; if not, they try again. Or throws, on all of them.
bool Communicator::has_grown(const std::vector<std::int64_t>& verdicts, const Failure& own) const {
  const std::int64_t missed = verdict_of(ErrorKind::kTimedOut);
  // A rank that could not come is why others have waited in vain.
  auto cause = std::find_if(verdicts.begin(), verdicts.end(),
                            [&](auto verdict) { return verdict >= kFailed && verdict != missed; });
  if (cause == verdicts.end()) cause = std::find(verdicts.begin(), verdicts.end(), missed);
  if (cause != verdicts.end()) {
    if (own && (own.kind != ErrorKind::kTimedOut || *cause == missed)) own.raise();
    Failure{static_cast<ErrorKind>(*cause - kFailed), -1,
            str("grow: ", describe(static_cast<Rank>(cause - verdicts.begin())),
                " could not meet the newcomers, and its error says why; this communicator goes on "
                "as it was")}
        .raise();
  }
  if (verdicts[0] == kNotMet) return false;
  const auto late = std::find(verdicts.begin(), verdicts.end(), kNotMet);
  if (late == verdicts.end()) return true;
  throw TimedOut(str("grow: ", describe(static_cast<Rank>(late - verdicts.begin())),
                     " did not hear of the end of the meeting in time; this communicator goes on "
                     "as it was"));
}

}  // namespace gradring::collectives
