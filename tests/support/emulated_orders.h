// The orders in which a test has the block emulator run threads and blocks.
#pragma once

#include <cstdint>

#include "emulator/block.h"

namespace gradring::testing {

struct EmulatedOrder {
  emulator::Order order;
  std::uint64_t seed;
};
#if defined(__SANITIZE_ADDRESS__)
// What it finds does not depend on the order, and it takes thirty times as long.
inline constexpr EmulatedOrder kEmulatedOrders[] = {{emulator::Order::kRandom, 1}};
#else
inline constexpr EmulatedOrder kEmulatedOrders[] = {
    {emulator::Order::kForward, 0}, {emulator::Order::kReverse, 0}, {emulator::Order::kRandom, 1}};
#endif

// Calls `body` in each order. `body` is a test's part and says itself what fails.
template <typename Body>
void in_every_order(const Body& body) {
  for (const EmulatedOrder& in : kEmulatedOrders) {
    emulator::set_order(in.order, in.seed);
    body();
  }
  emulator::set_order(emulator::Order::kForward);
}

}  // namespace gradring::testing
