//! The native companion of the page.

fn main() {}
