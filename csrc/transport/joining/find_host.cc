// How whoever joins finds rank 0.
#include <poll.h>

#include <algorithm>

#include "base/error.h"
#include "transport/joining/rendezvous.h"

namespace gradring::transport {
namespace {

constexpr Millis kSearchPause{50};

}  // namespace

Connection find_host(const JoinOptions& options, Time deadline) {
  const bool is_rank = options.rank >= 0;
  const std::string who = is_rank ? str("rank ", options.rank) : "a newcomer";
  const Purpose purpose = is_rank ? Purpose::kControl : Purpose::kNewcomer;
  std::string why;
  while (true) {
    bool is_there = false;
    try {
      Connection connection =
          connect_tcp(options.rendezvous, std::min(deadline, Clock::now() + Millis{3000}), why);
      is_there = static_cast<bool>(connection);
      if (connection) {
        shake_hands(connection, options.credentials, {purpose, 0, options.rank, 0, 0, {}},
                    deadline);
        return connection;
      }
    } catch (const wire::OtherBuild& error) {
      throw wire::OtherBuild(str(who, " and rank 0 at ", to_text(options.rendezvous),
                                 " do not understand each other: ", error.what()));
    } catch (const ProtocolError& error) {
      why = error.what();  // Closed during the handshake: its owner may just be going or coming.
    } catch (const TimedOut&) {
      why = "something takes connections there and says nothing";
    }
    if (options.check_interrupt) options.check_interrupt();
    // Where a world grows rank 0 listens before it says where: it has given up, unless it takes
    // connections and sends some away, as beside a crowd.
    if ((options.growth && !is_there) || Clock::now() + kSearchPause >= deadline)
      throw TimedOut(str(who, ": rank 0 does not answer at ", to_text(options.rendezvous),
                         " after ", seconds_between(Time{}, Time{options.timeout}), " s: ", why,
                         "; is rank 0 started, and is the address reachable from here?"));
    ::poll(nullptr, 0, static_cast<int>(kSearchPause.count()));
  }
}

}  // namespace gradring::transport
