//! Who belongs to the deployment, for operators (docs/protocol.md §4).

use super::Service;
pub use crate::quorum::membership::{Change, ChangeError, MemberView, MembersView};

impl Service {
    /// The members as this server sees them.
    pub fn members(&self) -> MembersView {
        self.engine.members_view()
    }

    /// Has a change chosen, and shows the members then.
    ///
    /// # Errors
    /// Why it was not made.
    pub async fn change_members(&self, change: &Change) -> Result<MembersView, ChangeError> {
        self.engine.change_members(change).await?;
        Ok(self.engine.members_view())
    }
}
