//! Fencing tokens without a lease, in the same sequence as the lock of that name.

use super::leases::unavailable;
use super::locks::fences;
use super::{Service, ServiceError};
use crate::domain::{Name, Token};
use crate::node::calls::Entry;
use crate::quorum::tally;

/// What a check of a token found; a stale one is [`ServiceError::StaleToken`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCheck {
    /// No later token has been issued.
    Current {
        /// The token itself.
        highest: Token,
    },
    /// It is higher than any known.
    Unknown {
        /// The highest known, where one is.
        highest: Option<Token>,
    },
}

impl Service {
    /// The next token of the name's sequence.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn issue_token(&self, name: &Name) -> Result<Token, ServiceError> {
        self.engine.issue(&self.engine.keys().lock(name)).await.map_err(unavailable)
    }

    /// Whether a later token than `token` has been issued. Changes nothing.
    ///
    /// # Errors
    /// [`ServiceError::StaleToken`], [`ServiceError::QuorumUnavailable`].
    pub async fn check_token(&self, name: &Name, token: Token) -> Result<TokenCheck, ServiceError> {
        match self.get_fence(name).await? {
            Some(highest) if highest > token => Err(ServiceError::StaleToken { highest }),
            Some(highest) if highest == token => Ok(TokenCheck::Current { highest }),
            highest => Ok(TokenCheck::Unknown { highest }),
        }
    }

    /// The highest token of the name that may have been given to somebody.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn get_fence(&self, name: &Name) -> Result<Option<Token>, ServiceError> {
        let key = self.engine.keys().lock(name);
        let total = self.engine.total();
        // A minority may know of a token that nobody was given: where nodes differ, the others are asked too.
        let settled = |answers: &[Vec<Option<Entry>>]| tally::is_fence_settled(&fences(answers), total);
        let (answers, _) = self.engine.read(&[&key], settled).await.map_err(unavailable)?;
        let highest = tally::highest_fence(&fences(&answers), total);
        Ok(highest.and_then(|fence| Token::new(fence).ok()))
    }
}
