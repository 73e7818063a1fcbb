//! semaphores
