//! Fencing tokens without a lease, in the same sequence as the lock of that name.

use super::looks::fences;
use super::{Service, ServiceError, unavailable};
use crate::domain::{Entry, Name, Nodes, Token};
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
    /// [`ServiceError::StaleToken`], [`ServiceError::QuorumUnavailable`], also where only a node that did not
    /// answer could tell a later token from one that a lost round has left at a minority.
    pub async fn check_token(&self, name: &Name, token: Token) -> Result<TokenCheck, ServiceError> {
        let (fences, nodes) = self.read_fences(name).await?;
        let [least, highest] =
            tally::highest_fence_within(&fences, self.engine.total()).map(|fence| Token::new(fence?).ok());
        match highest {
            Some(highest) if least > Some(token) => Err(ServiceError::StaleToken { highest }),
            Some(highest) if highest > token => Err(unavailable(nodes)),
            Some(highest) if highest == token => Ok(TokenCheck::Current { highest }),
            highest => Ok(TokenCheck::Unknown { highest }),
        }
    }

    /// The highest token of the name that may have been given to somebody.
    ///
    /// # Errors
    /// [`ServiceError::QuorumUnavailable`].
    pub async fn get_fence(&self, name: &Name) -> Result<Option<Token>, ServiceError> {
        let (fences, _) = self.read_fences(name).await?;
        let highest = tally::highest_fence(&fences, self.engine.total());
        Ok(highest.and_then(|fence| Token::new(fence).ok()))
    }

    async fn read_fences(&self, name: &Name) -> Result<(Vec<u64>, Nodes), ServiceError> {
        let key = self.engine.keys().lock(name);
        let total = self.engine.total();
        // A minority may know of a token that nobody was given: where nodes differ, the others are asked too.
        let settled = |answers: &[Vec<Option<Entry>>]| tally::is_fence_settled(&fences(answers), total);
        let (answers, nodes) = self.engine.read(&[&key], settled).await.map_err(unavailable)?;
        Ok((fences(&answers), nodes))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::node::Script;
    use crate::quorum::fixture::Api;
    use crate::service::WaitLimits;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_not_called_stale_for_one_that_perhaps_nobody_has() {
        let [api, _] = Api::pair().await;
        let service =
            Service::new(api.engine.clone(), WaitLimits { waiters_max: 1, waiters_per_name_max: 1 });
        let name = Name::new("a").unwrap();
        let token = api.acquire().await.token;
        tokio::time::sleep(Duration::from_secs(1)).await;
        // As after a contender that got no other node.
        let fence = Token::new(token.get() + 5).unwrap();
        api.nodes[2]
            .node
            .command(&["SET", &api.scope.channels()[0], &format!("{:042}", fence.get())])
            .unwrap();
        assert_eq!(service.check_token(&name, token).await.unwrap(), TokenCheck::Current { highest: token });

        api.nodes[0].refuse(Some(Script::Read));
        let unclear = service.check_token(&name, token).await;
        assert!(matches!(unclear, Err(ServiceError::QuorumUnavailable { .. })), "{unclear:?}");
        let earlier = service.check_token(&name, Token::new(token.get() - 1).unwrap()).await;
        assert!(matches!(earlier, Err(ServiceError::StaleToken { .. })), "{earlier:?}");
        assert_eq!(service.check_token(&name, fence).await.unwrap(), TokenCheck::Current { highest: fence });
    }
}
