//! quorum
/// stub
pub struct Engine;
/// stub
pub struct Grant;
impl Grant { /// stub
 pub fn keep(self) {} }
