// What a wait of a user's thread does about signals: the binding says how handlers run, and whoever
// waits, on a socket as well as on other ranks, asks for it between two looks.
#pragma once

namespace gradring::transport {

// Set once by the binding: runs pending signal handlers and throws Interrupted if one of them wants
// out. nullptr: nothing to run.
void set_interrupt_check(void (*check)());
void run_interrupt_check();  // On the thread that waits.

}  // namespace gradring::transport
